"""The service as an ASGI app: everything else wraps it.

app = create_app("runs/dvt-onnx")          uvicorn, hypercorn, Ray Serve or a test client runs it
"""

import logging
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from os import PathLike
from typing import Any

import numpy as np

from ...common.extras import require
from .budget import Budget
from .costs import Costs, measure
from .engine import Engine
from .limits import Limits
from .metrics import Metrics
from .model import ServedModel
from .problems import Problem, not_found
from .scheduler import Scheduler
from .service import Explainer, Sample, Service
from .settings import Settings

logger = logging.getLogger("dynavit.serve")


def create_app(
    model: str | PathLike[str] | ServedModel,
    settings: Settings | None = None,
    limits: Limits | None = None,
    *,
    explainer: Explainer | None = None,
    samples: Sequence[Sample] = (),
    trust_pt2: bool = False,
) -> Any:
    """A FastAPI app that serves one model.

    Loads, tests and measures the model before it returns, so that an app that exists can answer.

    Args:
        model: a bundle of `dynavit export`, or a model that is open already.
        explainer: attention maps of a prepared image at an exit; None: the page hides them.
        samples: pictures for the page, held in memory.
        trust_pt2: open a .pt2 bundle, which can run any code of the one who made it.
    """
    require("fastapi", "serve")
    require("python_multipart", "serve")
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    from . import oip, routes_predict, routes_watch
    from .described import complete
    from .door import Door

    settings, limits = settings or Settings(), limits or Limits()
    settings.check()
    limits.check()
    if not isinstance(model, ServedModel):
        model = ServedModel.open(model, trust_pt2=trust_pt2)
    service = build_service(model, settings, limits, explainer, samples)

    @asynccontextmanager
    async def life(app: Any) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(title="dynavit", version=version("dynavit"), docs_url=None, redoc_url=None, lifespan=life)
    app.state.service = service
    app.add_middleware(Door, settings=settings, limits=limits, metrics=service.metrics)

    async def as_problem(request: Any, error: Exception) -> Any:
        """Errors of the framework in our shape: the door writes them."""
        raise _translated(error)

    app.add_exception_handler(HTTPException, as_problem)
    app.add_exception_handler(RequestValidationError, as_problem)
    for router in (routes_watch.router, routes_predict.router, oip.router):
        app.include_router(router)
    plan = complete(app.openapi())
    app.openapi = lambda: plan  # type: ignore[method-assign]
    return app


def build_service(
    model: ServedModel,
    settings: Settings,
    limits: Limits,
    explainer: Explainer | None = None,
    samples: Sequence[Sample] = (),
) -> Service:
    """The service of a model that passed its test, with measured costs."""
    if settings.name is not None:
        model.name = settings.name
    _, height, width = model.input_size
    peak = max((exit.state_bytes for exit in model.exits), default=0)
    model.notes += limits.check(job_bytes=peak, input_pixels=height * width)
    model.self_test()
    points, sizes = measure(model, np.zeros(model.entry_size, np.uint8), [limits.max_batch] * len(model.exits))
    if min(sizes) < limits.max_batch:
        model.notes.append(f"batches of more than {min(sizes)} images do not fit into memory")
    costs = Costs.fitted(points)
    scheduler = Scheduler(
        len(model.exits),
        sizes,
        costs,
        [exit.state_bytes for exit in model.exits],
        max_queue=limits.max_queue,
        max_per_client=limits.max_per_client,
        max_parked=limits.max_parked,
        batch_wait=settings.batch_wait_ms / 1e3,
        hold=settings.hold,
        shares=model.curve.default.shares,
        brown_out=None if settings.degrade_to is None else model.curve.apply(Budget(level=settings.degrade_to)),
    )
    build = {"version": version("dynavit"), "model_version": model.version, "torch": _torch_version()}
    metrics = Metrics(len(model.exits), build)
    engine = Engine(model, scheduler, observer=metrics, hang_after=limits.heartbeat)
    return Service(model, engine, settings, limits, metrics, explainer, samples)


def _torch_version() -> str:
    """That of the process; ONNX bundles run without."""
    torch = sys.modules.get("torch")
    return str(torch.__version__) if torch is not None else "none"


def _translated(error: Exception) -> Problem:
    status = getattr(error, "status_code", 422)
    if status == 404:
        return not_found()
    if status == 405:
        allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
        return Problem(405, "method", "this address does not take this method", headers={"Allow": allowed})
    return Problem(status, "request", "the request does not fit this address")
