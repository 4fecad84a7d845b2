"""A run or a bundle as a service: `dynavit.serve("runs/dvt")` listens until it is told to stop.

Nothing at the top imports torch: an ONNX bundle is served without it.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..common.registry import nearest_match_error
from ..deploy.bundle.manifest import is_bundle
from ..deploy.serve.limits import Limits
from ..deploy.serve.settings import Settings
from .subject import Subject, Which

if TYPE_CHECKING:
    from ..deploy.serve.model import ServedModel
    from ..deploy.serve.server import Parser
    from ..deploy.serve.service import Explainer

SAMPLES = 8


def serve(
    run: str | PathLike[str] | Subject,
    *,
    samples: int = SAMPLES,
    parser: "Parser" = "auto",
    trust_pt2: bool = False,
    started: Callable[[str, Any], None] = lambda url, app: None,
    **options: Any,
) -> int:
    """Serve a run directory or a bundle until SIGTERM or Ctrl-C; returns 0, or 70 if the model's thread died.

    Args:
        samples: pictures of the run's data that the page offers.
        parser: of HTTP: httptools, h11, or the first that is installed.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it.
        started: called with the address and the app when connections are accepted.
        options: fields of `Settings` (host, port, budget, token_file, ...), `Limits` (max_queue, ...) and `Which`.
    """
    from ..deploy.serve import server

    which, settings, limits = (_part(kind, options) for kind in (Which, Settings, Limits))
    if options:
        known = [field.name for kind in (Which, Settings, Limits) for field in fields(kind)]
        raise nearest_match_error("option", next(iter(options)), known)
    subject = Subject.of(run, which)
    settings.check()
    limits.check()
    with server.bind(settings) as taken:
        app = service_app(subject, settings, limits, samples=samples, trust_pt2=trust_pt2)
        return server.run(app, taken, settings, limits, parser=parser, started=lambda _: started(server.address(taken), app))


def service_app(
    run: str | PathLike[str] | Subject,
    settings: Settings | None = None,
    limits: Limits | None = None,
    *,
    samples: int = SAMPLES,
    trust_pt2: bool = False,
) -> Any:
    """The ASGI app of a run or a bundle, with samples and, of a run, attention maps."""
    from ..common.extras import require

    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, "serve")  # before the model is loaded
    from ..deploy.serve.app import create_app
    from .samples import samples_of
    from .served import open_served

    subject = Subject.of(run)
    model = open_served(subject, trust_pt2=trust_pt2)
    pictures, note = samples_of(subject, samples)
    if note is not None:
        model.notes.append(note)
    explainer = None if is_bundle(subject.run) else explainer_of(model)
    return create_app(model, settings, limits, explainer=explainer, samples=pictures)


def explainer_of(model: "ServedModel") -> "Explainer | None":
    """The maps of a run's model, tried once; None, and a note about it, where it has none, such as a ResNet."""
    import numpy as np

    try:
        explain(model, np.zeros(model.entry_size, np.uint8), len(model.exits))
    except (ValueError, LookupError) as error:
        model.notes.append(f"there are no attention maps: {str(error).partition('. ')[0]}")
        return None
    return partial(explain, model)


def explain(model: "ServedModel", entry: Any, exit: int) -> dict[str, Any]:
    """The maps of one prepared image at one exit, counted from 1. Runs in the thread that owns the model."""
    from ..analysis.inside.exit_maps import exit_maps

    images = model.begin([entry]).images
    return exit_maps(model.backend.model, images)[exit - 1]  # type: ignore[attr-defined]


def _part(kind: Any, options: dict[str, Any]) -> Any:
    """The options that belong to a dataclass, taken out of all."""
    return kind(**{field.name: options.pop(field.name) for field in fields(kind) if field.name in options})
