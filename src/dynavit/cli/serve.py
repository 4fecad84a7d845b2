"""`dynavit serve`: a run or a bundle behind HTTP, with a page."""

import logging
import sys
from pathlib import Path
from typing import Any, Literal

from ..common.fits import Count
from ..deploy.serve.limits import Limits
from ..deploy.serve.settings import Settings
from ..runs.subject import Subject, Which
from .parse import positional
from .show import print_overview, print_table


@positional("run")
def serve(
    run: Path,
    which: Which,
    settings: Settings,
    limits: Limits,
    samples: Count = 8,
    parser: Literal["auto", "httptools", "h11"] = "auto",
    trust_pt2: bool = False,
    check: bool = False,
    quiet: bool = False,
) -> None:
    """Answer images over HTTP, each within a budget; the page at the printed address shows what that means.

      dynavit serve runs/dvt                                   http://127.0.0.1:8000, for this machine alone
      dynavit serve runs/dvt --budget gmacs=0.0007             what requests get that name no budget
      curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' 'http://127.0.0.1:8000/v1/predict?accuracy=0.95'
      dynavit serve runs/dvt-onnx --host 0.0.0.0 --token-file token.txt     for others, who have to know the token
      dynavit serve runs/dvt --check                           load, test and measure it, show the limits, and end

    An image leaves the model as soon as it is sure; the others wait for company and go on. A budget is a target (level, gmacs,
    accuracy, latency_ms: a mean over many images) and limits (max_exit, max_gmacs, deadline_ms: for this very image).
    SIGTERM and Ctrl-C finish what was begun; a second one does not wait. Exit code 70: the model's thread died.
    In Python: `dynavit.serve(run, port=8000)`, and as an ASGI app `dynavit.deploy.serve.create_app(bundle)`.

    Args:
        run: directory of a run, or a bundle of `dynavit export`.
        samples: pictures of the run's data that the page offers to try.
        parser: that reads HTTP; the first that is installed if not given.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it; without this it is refused.
        check: load the model, test it, measure it, print all limits, and exit with 0, or 1 if it cannot be served.
        quiet: print the address alone.
    """
    from ..runs import serve as verb

    logging.basicConfig(level="INFO" if settings.log_requests else "WARNING", format="%(asctime)s %(levelname)s %(message)s")
    subject = Subject.of(run, which)
    if check:
        _check(subject, settings, limits, trust_pt2)
        return

    def started(url: str, app: Any) -> None:
        if not quiet:
            print_overview(_overview(app))
        print(f"serving {app.state.service.model.name} on {url}", flush=True)
        if not quiet:
            print("Ctrl-C stops it", file=sys.stderr)

    options = {**vars(settings), **vars(limits)}
    code = verb.serve(subject, samples=samples, parser=parser, trust_pt2=trust_pt2, started=started, **options)
    if code:
        raise SystemExit(code)


def _overview(app: Any) -> dict[str, str]:
    """What is served."""
    service = app.state.service
    info, applied = service.info(), service.in_force(None).applied
    facts = {
        "model": f"{info['model']['name']} ({info['model']['version']}), {len(info['classes'])} classes",
        "exits": ", ".join(_exit_words(exit, cost) for exit, cost in zip(info["exits"], info["costs"], strict=True)),
        "budget": "thresholds " + (", ".join(f"{value:.4g}" for value in applied.thresholds) or "none: one exit"),
        "samples": str(info["samples"]),
    }
    if applied.expected_gmacs is not None:
        facts["budget"] += f", about {applied.expected_gmacs:.4g} GMACs on average"
    return facts | ({"note": "; ".join(info["notes"])} if info["notes"] else {})


def _exit_words(exit: dict[str, Any], cost: dict[str, Any]) -> str:
    gmacs = "" if exit["cumulative_gmacs"] is None else f"{exit['cumulative_gmacs']:.4g} GMACs, "
    return f"{exit['exit']} ({gmacs}{cost['fixed_ms']:.2g} + {cost['per_image_ms']:.2g} ms per image)"


def _check(subject: Subject, settings: Settings, limits: Limits, trust_pt2: bool) -> None:
    """For CI and containers that prepare others."""
    from ..runs.serve import service_app

    try:
        app = service_app(subject, settings, limits, samples=0, trust_pt2=trust_pt2)
    except (ValueError, OSError) as error:
        print("dynavit: " + " ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(1) from None
    print_overview(_overview(app))
    rows = [[name, f"{value:g}" if isinstance(value, float) else str(value)] for name, value in limits.to_dict().items()]
    print_table("limits", ["limit", "value"], rows)
