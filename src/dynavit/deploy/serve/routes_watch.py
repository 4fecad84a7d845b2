"""The page, facts about the model, live numbers, and the server's budget."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from . import schemas
from .answers import budget_facts
from .bodies import read_budget, read_json
from .budget import Budget
from .described import _named, failures
from .door import Visit
from .page import page
from .service import Service

TEXT = {"schema": {"type": "string"}}
EVERY = 1.0  # seconds between two events
LONGEST = 600  # events; then the page connects anew, so that a reader that has stopped reading does not keep its place

router = APIRouter()


def _service(request: Request) -> Service:
    return request.app.state.service


@router.get("/", include_in_schema=False)
async def the_page() -> HTMLResponse:
    content, headers = page()
    return HTMLResponse(content, headers=headers)


@router.get("/v1/info", tags=["facts"], responses={200: {"model": schemas.Info}, **failures()})
async def info(request: Request) -> JSONResponse:
    """Model, classes, exits with their GMACs, measured costs, limits, and the server's budget."""
    service = _service(request)
    return JSONResponse({**service.info(), "budget": budget_facts(service.in_force(None))})


@router.get("/v1/curve", tags=["facts"], responses={200: {"model": schemas.Curve}, **failures()})
async def curve(request: Request) -> JSONResponse:
    """Budget, accuracy, thresholds and shares of each calibration point. Nothing between them is interpolated."""
    model = _service(request).model
    known = model.curve.calibrated
    points = [{"level": model.curve.level_of(at), **point.plain()} for at, point in enumerate(model.curve.points)]
    note = "a budget takes one of these points" if known else "not calibrated: a budget can only choose the deepest exit"
    facts = {"points": points if known else [], "calibrated": known, "calibration": model.calibration}
    return JSONResponse({**facts, "interpolated": False, "note": note})


@router.get("/v1/samples", tags=["facts"], responses={200: {"model": schemas.Samples}, **failures()})
async def samples(request: Request) -> JSONResponse:
    """Pictures to try the model with, held in memory."""
    found = [
        {"name": sample.name, "data_uri": "data:image/png;base64," + base64.b64encode(sample.png).decode()}
        for sample in _service(request).samples
    ]
    return JSONResponse({"samples": found})


@router.get("/v1/stats", tags=["numbers"], responses={200: {"model": schemas.Stats}, **failures()})
async def stats(request: Request) -> JSONResponse:
    """The last minute, exactly, and the present moment."""
    return JSONResponse(_service(request).stats())


@router.get(
    "/v1/stream",
    tags=["numbers"],
    responses={200: {"content": {"text/event-stream": TEXT}}, **failures(503)},
)
async def stream(request: Request) -> StreamingResponse:
    """The same once a second, as server-sent events."""
    service = _service(request)
    service.check_ready()
    if service.streams >= service.limits.max_streams:
        raise service.refusal("streams_full", 5.0)
    service.streams += 1
    return Stream(service)


class Stream(StreamingResponse):
    """Counted until its end, however it ends."""

    def __init__(self, service: Service) -> None:
        super().__init__(self._events(), media_type="text/event-stream")
        self.service = service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.service.streams -= 1

    async def _events(self) -> AsyncIterator[str]:
        for _ in range(LONGEST):
            yield self._event()
            try:
                await asyncio.wait_for(self.service.stopping.wait(), EVERY)
            except TimeoutError:
                continue
            yield self._event()
            return

    def _event(self) -> str:
        return f"data: {json.dumps(self.service.stats())}\n\n"


@router.put(
    "/v1/budget",
    tags=["operator"],
    responses={200: {"model": schemas.BudgetInForce}, **failures(422)},
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": _named(schemas.Budget)}}},
)
async def set_budget(request: Request) -> JSONResponse:
    """Change the budget of requests that name none. It needs the admin token; images that were admitted keep theirs."""
    service, visit = _service(request), _visit(request)
    plain: Any = read_json(await visit.body(), service.limits)
    return JSONResponse(budget_facts(service.set_budget(read_budget(plain) or Budget())))


@router.get(
    "/metrics", tags=["numbers"], responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **failures()}
)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(_service(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _visit(request: Request) -> Visit:
    return request.state.visit
