"""Parts of the OpenAPI file that the functions of routes do not tell: bodies of several kinds, queries, errors."""

from typing import Any

from . import schemas

FILE = {"schema": {"type": "string", "format": "binary"}}
IMAGE_TYPES = ("image/jpeg", "image/png", "image/webp")


def _body(**more: Any) -> dict[str, Any]:
    return {"required": True, "content": {**dict.fromkeys(IMAGE_TYPES, FILE), **more}}


def _named(model: Any) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}


PREDICT_BODY = _body(**{"application/json": _named(schemas.Images), "multipart/form-data": _named(schemas.Form)})
IMAGE_BODY = _body()
INFER_BODY = {"required": True, "content": {"application/json": _named(schemas.InferRequest), "application/octet-stream": FILE}}


def _parameter(name: str, about: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": about, "schema": schema}


BUDGET_QUERY = [
    _parameter("level", "target: position on the curve", type="number", minimum=0, maximum=1),
    _parameter("gmacs", "target: mean GMACs per image", type="number", exclusiveMinimum=0),
    _parameter("accuracy", "target: accuracy on the calibration set", type="number", minimum=0, maximum=1),
    _parameter("latency_ms", "target: mean milliseconds of computing on this machine", type="number", exclusiveMinimum=0),
    _parameter("thresholds", "target: one for each exit but the last, separated by commas", type="string"),
    _parameter("max_exit", "limit: deepest exit", type="integer", minimum=1),
    _parameter("max_gmacs", "limit: most GMACs for this image", type="number", exclusiveMinimum=0),
    _parameter("deadline_ms", "limit: time of the answer, from the end of the request", type="number", exclusiveMinimum=0),
    _parameter("on_deadline", "the best answer so far, or 504", type="string", enum=["best", "fail"]),
    _parameter("degrade", "an overloaded server may stop earlier", type="boolean"),
    _parameter("top", "how many classes to name", type="integer", minimum=1, maximum=10),
    _parameter("probabilities", "those of all classes, too", type="boolean"),
]
EXPLAIN_QUERY = [_parameter("exit", "which exit, from 1", type="integer", minimum=1)]


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors of a route; those that every route has are among them."""
    return {status: {"model": schemas.Error} for status in sorted({400, 401, 405, 408, 414, 500, *statuses})}


def complete(plan: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI file with the schemas of request bodies, and the token."""
    components = plan.setdefault("components", {})
    found = components.setdefault("schemas", {})
    for model in (schemas.Images, schemas.Form, schemas.Budget, schemas.InferRequest):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        found.update(schema.pop("$defs", {}))
        found[schema["title"]] = schema
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    plan["security"] = [{}, {"token": []}]
    return plan
