"""POST /v1/predict, /v1/sweep, /v1/explain: images in, answers out."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from . import schemas
from .answers import budget_facts, model_facts, result, sweep
from .bodies import Asked, read_asked
from .described import BUDGET_QUERY, EXPLAIN_QUERY, IMAGE_BODY, PREDICT_BODY, failures
from .door import Visit
from .problems import Problem
from .service import Service, Upload

router = APIRouter(prefix="/v1", tags=["answers"])


def _of(request: Request) -> tuple[Service, Visit]:
    return request.app.state.service, request.state.visit


@router.post(
    "/predict",
    summary="Answers about images, within a budget",
    responses={200: {"model": schemas.Predicted}, **failures(413, 415, 422, 429, 503, 504)},
    openapi_extra={"requestBody": PREDICT_BODY, "parameters": BUDGET_QUERY},
)
async def predict(request: Request) -> JSONResponse:
    """One image: its error is the status. Several: 200, and each result has a status of its own."""
    service, visit = _of(request)
    asked = await _asked(request, visit, service)
    force = service.in_force(asked.budget)

    async def one(upload: Upload) -> dict[str, Any]:
        try:
            outcome = await service.answer(upload, force, visit.client, visit.complete_at)
        except Problem as problem:
            if len(asked.uploads) == 1:
                raise
            return {"id": upload.id, "status": problem.status, **problem.item()}
        total = 1e3 * (time.monotonic() - visit.complete_at)
        return result(outcome, service.model, force, upload.id, asked.top, asked.probabilities, total)

    results = await visit.unless_gone(together([one(upload) for upload in asked.uploads]))
    failed = sum(each["status"] != 200 for each in results)
    facts = {"request_id": visit.id, "model": model_facts(service.model), "budget": budget_facts(force)}
    return JSONResponse({**facts, "results": results, "failed": failed})


@router.post(
    "/sweep",
    summary="One image at every exit, and what each budget would have made of it",
    responses={200: {"model": schemas.Swept}, **failures(413, 415, 422, 429, 503, 504)},
    openapi_extra={"requestBody": IMAGE_BODY},
)
async def sweep_exits(request: Request) -> JSONResponse:
    service, visit = _of(request)
    upload = await _one_image(request, visit, service)
    outcome = await visit.unless_gone(service.answer(upload, service.all_exits(), visit.client, visit.complete_at))
    return JSONResponse({"request_id": visit.id, **sweep(outcome, service.model)})


@router.post(
    "/explain",
    summary="What one exit looks at in one image",
    responses={200: {"model": schemas.Explained}, **failures(404, 413, 415, 422, 503)},
    openapi_extra={"requestBody": IMAGE_BODY, "parameters": EXPLAIN_QUERY},
)
async def explain(request: Request) -> JSONResponse:
    service, visit = _of(request)
    exits, given = len(service.model.exits), request.query_params.get("exit", "1")
    if not (given.isascii() and given.isdigit() and len(given) < 4 and 1 <= int(given) <= exits):
        raise Problem(422, "exit", f"exit is a number from 1 to {exits}")
    upload = await _one_image(request, visit, service, ("exit",))
    found = await visit.unless_gone(service.explain(upload, int(given)))
    return JSONResponse({"request_id": visit.id, "exit": int(given), **found})


async def together(work: list[Any]) -> list[Any]:
    """All results in order; where one fails or the whole is cancelled, nothing is left running."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _query(request: Request) -> Mapping[str, str]:
    """The words behind the question mark. Of one that stands there twice, it would be a guess which one is meant."""
    words = request.query_params
    if len(words.multi_items()) > len(words):
        raise Problem(422, "query", "a parameter stands twice in the query")
    return words


async def _asked(request: Request, visit: Visit, service: Service) -> Asked:
    service.check_ready()
    query = _query(request)
    body = await visit.body()
    return await read_asked(body, request.headers.get("content-type", ""), query, service.limits)


async def _one_image(request: Request, visit: Visit, service: Service, words: tuple[str, ...] = ()) -> Upload:
    """The only image of a request, as its body or as the only part or item of it."""
    if unknown := set(_query(request)) - set(words):
        raise Problem(422, "query", f"there is no parameter {min(unknown)[:100]!r} here")
    service.check_ready()
    body = await visit.body()
    asked = await read_asked(body, request.headers.get("content-type", ""), {}, service.limits)
    if len(asked.uploads) != 1 or asked.budget is not None:
        raise Problem(422, "images", "this takes one image, and no budget")
    return asked.uploads[0]
