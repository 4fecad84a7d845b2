"""The Open Inference Protocol over HTTP, which KServe, Seldon and Triton's clients speak, with binary tensors.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol

Inputs: `image` BYTES [n], encoded files, or `pixels` FP32 [n, c, h, w], prepared already. Outputs: label INT64, name BYTES,
confidence FP32, exit INT32, gmacs FP32, each [n], and on request probabilities FP32 [n, classes]. The budget stands among the
request's `parameters`. One image that fails fails the request, since the protocol knows no partial answers.
"""

import asyncio
import json
import math
import re
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from . import schemas
from .bodies import LARGE, read_budget, read_json, unpacked
from .budget import Budget
from .described import INFER_BODY, failures
from .door import Visit
from .limits import Limits
from .problems import Problem, not_found
from .routes_predict import together
from .service import Service, Upload

HEADER_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ["dynavit_budget", "schedule_policy", "binary_tensor_data"]
BUDGETS = {
    "budget_gmacs": "gmacs",
    "budget_accuracy": "accuracy",
    "budget_level": "level",
    "budget_latency_ms": "latency_ms",
    **{name: name for name in ("max_exit", "max_gmacs", "deadline_ms", "on_deadline", "degrade")},
}
OTHERS = ("timeout", "priority", "binary_data_output")
DATATYPES: dict[str, Any] = {"INT64": np.int64, "INT32": np.int32, "FP32": np.float32, "BYTES": np.object_}
OUTPUTS = {"label": "INT64", "name": "BYTES", "confidence": "FP32", "exit": "INT32", "gmacs": "FP32", "probabilities": "FP32"}
ON_REQUEST = ("probabilities",)

INFERRED = {
    "model": schemas.Inferred,
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
Route = TypeVar("Route", bound=Callable[..., Awaitable[Any]])

router = APIRouter(prefix="/v2", tags=["open inference protocol"])


@dataclass(frozen=True)
class Tensor:
    """An input as it came: `data` is what JSON held, or the bytes behind it."""

    name: str
    datatype: str
    shape: list[int]
    data: Any
    base64: bool = False


def _service(request: Request) -> Service:
    return request.app.state.service


def of_model(method: str, rest: str = "", **described: Any) -> Callable[[Route], Route]:
    """A route of the model, by its name and also by its version."""

    def register(function: Route) -> Route:
        for path in ("/models/{name}", "/models/{name}/versions/{version}"):
            names = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)}", path)
            ]
            extra = {"parameters": names, **described.get("extra", {})}
            how = {"responses": described["responses"], "openapi_extra": extra}
            router.add_api_route(path + rest, function, methods=[method], **how)
        return function

    return register


@router.get("", responses=failures())
async def server_metadata() -> dict[str, Any]:
    return {"name": "dynavit", "version": version("dynavit"), "extensions": EXTENSIONS}


@router.get("/health/live", responses=failures(503))
async def live(request: Request) -> JSONResponse:
    """Whether the process works; a full queue does not change it."""
    return _health(_service(request).live, _service(request), request.state.visit.id)


@router.get("/health/ready", responses=failures(503))
async def ready(request: Request) -> JSONResponse:
    """Whether it takes new work."""
    return _health(_service(request).ready, _service(request), request.state.visit.id)


@of_model("GET", responses=failures(404))
async def model_metadata(request: Request) -> dict[str, Any]:
    model = _known(request).model
    shapes = {"probabilities": [-1, len(model.classes)]}
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": "dynavit",
        "inputs": [
            {"name": "image", "datatype": "BYTES", "shape": [-1]},
            {"name": "pixels", "datatype": "FP32", "shape": [-1, *model.input_size]},
        ],
        "outputs": [{"name": name, "datatype": kind, "shape": shapes.get(name, [-1])} for name, kind in OUTPUTS.items()],
    }


@of_model("GET", "/ready", responses={503: {"model": schemas.ModelReady}, **failures(404)})
async def model_ready(request: Request) -> JSONResponse:
    service = _known(request)
    return JSONResponse({"name": service.model.name, "ready": service.ready}, 200 if service.ready else 503)


@of_model(
    "POST",
    "/infer",
    responses={200: INFERRED, **failures(404, 413, 415, 422, 429, 503, 504)},
    extra={"requestBody": INFER_BODY},
)
async def infer(request: Request) -> Response:
    service = _known(request)
    visit: Visit = request.state.visit
    service.check_ready()
    body, header = await visit.body(), visit.headers.get(HEADER_LENGTH.lower().encode())
    if len(body) > LARGE:  # megabytes of numbers would hold the event loop up
        plain, uploads = await asyncio.to_thread(read_inputs, body, header, service)
    else:
        plain, uploads = read_inputs(body, header, service)
    parameters = _object(plain.get("parameters", {}), "parameters")
    wanted = wanted_outputs(plain, parameters)
    budget, priority = budget_of(parameters)
    force = service.in_force(budget)
    work = [service.answer(upload, force, visit.client, visit.complete_at, priority) for upload in uploads]
    outcomes = await visit.unless_gone(together(work))
    left = [outcome.exits[outcome.exit - 1] for outcome in outcomes]
    costs = [service.model.exits[len(outcome.exits) - 1].cumulative_gmacs for outcome in outcomes]
    values = {
        "label": [ran.label for ran in left],
        "name": [service.model.classes[ran.label] for ran in left],
        "confidence": [ran.confidence for ran in left],
        "exit": [outcome.exit for outcome in outcomes],
        "gmacs": [0.0 if cost is None else cost for cost in costs],
        "probabilities": [ran.probabilities for ran in left],
    }
    facts = {"model_name": service.model.name, "model_version": service.model.version, "id": plain.get("id") or visit.id}
    return packed(facts, {name: values[name] for name in wanted}, wanted)


# ---- Requests


def read_inputs(body: bytes, header: bytes | None, service: Service) -> tuple[dict[str, Any], list[Upload]]:
    """The JSON of a request, and its images."""
    plain, tensors = split_body(body, header, service.limits)
    return plain, uploads_of(tensors, service)


def split_body(body: bytes, header: bytes | None, limits: Limits) -> tuple[dict[str, Any], list[Tensor]]:
    """The JSON of a request, and its inputs with their data, wherever these stand."""
    length = len(body)
    if header is not None:
        if not header.isdigit() or len(header) > 10 or not 0 < int(header) <= len(body):
            raise Problem(400, "header_length", f"{HEADER_LENGTH} is the length of the JSON at the start of the body")
        length = int(header)
    plain = _object(read_json(body[:length], limits), "the request")
    inputs = plain.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise Problem(422, "inputs", "inputs is a list of tensors")
    if not isinstance(plain.get("id"), str | None):
        raise Problem(422, "id", "id is a text")
    rest, tensors = memoryview(body)[length:], []
    for item in inputs:
        tensor, rest = _tensor(_object(item, "an input"), rest)
        tensors.append(tensor)
    if rest:
        raise Problem(400, "binary", f"{len(rest)} bytes behind the last input belong to none")
    return plain, tensors


def _tensor(item: dict[str, Any], rest: memoryview) -> tuple[Tensor, memoryview]:
    name, kind, shape = item.get("name"), item.get("datatype"), item.get("shape")
    if not isinstance(name, str) or not isinstance(kind, str):
        raise Problem(422, "inputs", "an input has a name and a datatype")
    sizes_fit = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**31 for size in shape)
    if not isinstance(shape, list) or not sizes_fit or len(shape) > 8:
        raise Problem(422, "shape", f"the shape of {name[:100]!r} is a list of whole numbers")
    parameters = _object(item.get("parameters", {}), "parameters")
    size = parameters.get("binary_data_size")
    if size is None:
        if "data" not in item:
            raise Problem(422, "data", f"the input {name[:100]!r} has no data")
        return Tensor(name, kind, shape, item["data"], parameters.get("content_type") == "base64"), rest
    if type(size) is not int or not 0 <= size <= len(rest):
        raise Problem(400, "binary", f"binary_data_size of {name[:100]!r} is not within the body")
    return Tensor(name, kind, shape, rest[:size]), rest[size:]


def uploads_of(tensors: list[Tensor], service: Service) -> list[Upload]:
    """One for each image."""
    if len(tensors) != 1 or tensors[0].name not in ("image", "pixels"):
        raise Problem(422, "inputs", "there is one input: image (BYTES [n]) or pixels (FP32 [n, channels, height, width])")
    (tensor,) = tensors
    images = _files(tensor) if tensor.name == "image" else _prepared(tensor, service.model.input_size, service.limits)
    _count(len(images), service.limits)
    return images


def _count(count: int, limits: Limits) -> None:
    if not count:
        raise Problem(422, "shape", "the first number of shape is 0: there is no image in the request")
    if count > limits.max_images:
        raise Problem(413, "too_many_images", f"a request may have {limits.max_images} images, this one has {count}")


def _files(tensor: Tensor) -> list[Upload]:
    if tensor.datatype != "BYTES":
        raise Problem(422, "datatype", f"image has the datatype BYTES, got {tensor.datatype[:20]!r}")
    if len(tensor.shape) != 1:
        raise Problem(422, "shape", f"image has the shape [n], got {tensor.shape}")
    if isinstance(tensor.data, memoryview):
        files = _byte_items(tensor.data)
    else:
        given = tensor.data if isinstance(tensor.data, list) else [None]
        if not tensor.base64 or not all(isinstance(item, str) for item in given):
            raise Problem(
                422, "data", 'the data of image are base64 texts, with parameters {"content_type": "base64"}, or binary'
            )
        files = [unpacked(item, f"data[{at}] of image") for at, item in enumerate(given)]
    if len(files) != tensor.shape[0]:
        raise Problem(422, "shape", f"image has the shape {tensor.shape} and {len(files)} elements")
    return [Upload(file) for file in files]


def _byte_items(data: memoryview) -> list[Any]:
    """Elements of a binary BYTES tensor: each is its length in 4 bytes, little end first, and so many bytes."""
    items = []
    while data:
        if len(data) < 4 or len(data) - 4 < (size := struct.unpack("<I", data[:4])[0]):
            raise Problem(422, "data", "an element of image is cut off")
        items.append(data[4 : 4 + size])
        data = data[4 + size :]
    return items


def _prepared(tensor: Tensor, size: tuple[int, ...], limits: Limits) -> list[Upload]:
    if tensor.datatype != "FP32":
        raise Problem(422, "datatype", f"pixels has the datatype FP32, got {tensor.datatype[:20]!r}")
    if len(tensor.shape) != 4 or tuple(tensor.shape[1:]) != tuple(size):
        raise Problem(422, "shape", f"pixels has the shape [n, {', '.join(map(str, size))}], got {tensor.shape}")
    _count(tensor.shape[0], limits)
    try:
        if isinstance(tensor.data, memoryview):
            values = np.frombuffer(tensor.data, "<f4")
        else:
            with np.errstate(over="ignore"):  # infinity is refused below
                values = np.asarray(tensor.data, np.float64).astype(np.float32).ravel()
    except (ValueError, TypeError, OverflowError):
        raise Problem(422, "data", "the data of pixels are numbers, flat or nested as the shape says") from None
    if values.size != math.prod(tensor.shape):
        raise Problem(422, "shape", f"pixels has the shape {tensor.shape} and {values.size} numbers")
    if not np.isfinite(values).all():
        raise Problem(422, "data", "the data of pixels hold NaN or infinity")
    return [Upload(entry=np.ascontiguousarray(image, np.float32)) for image in values.reshape(tensor.shape)]


def budget_of(parameters: dict[str, Any]) -> tuple[Budget | None, float]:
    """The budget among the parameters of a request, and its priority among other clients' images."""
    known = [*BUDGETS, *OTHERS]
    if unknown := [name for name in parameters if name not in known]:
        raise Problem(422, "parameters", f"there is no parameter {unknown[0][:100]!r}", hint=", ".join(known))
    plain = {BUDGETS[name]: value for name, value in parameters.items() if name in BUDGETS}
    timeout = parameters.get("timeout", 0)  # Triton's: microseconds, 0 for none
    if type(timeout) is not int or not 0 <= timeout < 2**63:
        raise Problem(422, "timeout", "timeout is a whole number of microseconds")
    if timeout:
        own = plain.setdefault("deadline_ms", timeout / 1e3)
        if isinstance(own, int | float):
            plain["deadline_ms"] = min(own, timeout / 1e3)
    priority = parameters.get("priority", 0)  # Triton's: 1 is the most urgent, 0 for none
    if type(priority) is not int or not 0 <= priority < 2**32:
        raise Problem(422, "priority", "priority is a whole number, 1 the most urgent")
    return read_budget(plain) if plain else None, float(max(1, priority))


def wanted_outputs(plain: dict[str, Any], parameters: dict[str, Any]) -> dict[str, bool]:
    """Names of outputs, and whether each goes out in binary."""
    binary = bool(parameters.get("binary_data_output", False))
    asked = plain.get("outputs")
    if asked is None:
        return {name: binary for name in OUTPUTS if name not in ON_REQUEST}
    if not isinstance(asked, list):
        raise Problem(422, "outputs", "outputs is a list")
    wanted = {}
    for item in asked:
        name = _object(item, "an output").get("name")
        if not isinstance(name, str) or name not in OUTPUTS:
            raise Problem(422, "outputs", f"there is no output {str(name)[:100]!r}", hint=", ".join(OUTPUTS))
        wanted[name] = bool(_object(item.get("parameters", {}), "parameters").get("binary_data", binary))
    return wanted


# ---- Answers


def packed(facts: dict[str, Any], values: dict[str, list[Any]], binary: dict[str, bool]) -> Response:
    """JSON, and behind it the tensors that are wanted in binary."""
    outputs, tail = [], []
    for name, value in values.items():
        kind = OUTPUTS[name]
        array = np.asarray(value, DATATYPES[kind])
        output: dict[str, Any] = {"name": name, "datatype": kind, "shape": list(array.shape)}
        if binary[name]:
            data = (
                b"".join(map(_byte_item, value)) if kind == "BYTES" else array.astype(array.dtype.newbyteorder("<")).tobytes()
            )
            output["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            output["data"] = array.ravel().tolist()
        outputs.append(output)
    head = json.dumps({**facts, "outputs": outputs}).encode()
    if not tail:
        return Response(head, media_type="application/json")
    headers = {HEADER_LENGTH: str(len(head))}
    return Response(b"".join([head, *tail]), media_type="application/octet-stream", headers=headers)


def _byte_item(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _health(good: bool, service: Service, visit_id: str) -> JSONResponse:
    state = {"live": service.live, "ready": service.ready}
    if good:
        return JSONResponse(state)
    why = {"error": "the server is stopping" if service.stopping.is_set() else "the server is not ready", "code": "not_ready"}
    return JSONResponse({**state, **why, "request_id": visit_id}, 503)


def _known(request: Request) -> Service:
    """The service, if it is about this model. A name is compared and never used as a path."""
    service, asked = _service(request), request.path_params
    if asked["name"] != service.model.name or asked.get("version", service.model.version) != service.model.version:
        raise not_found()
    return service


def _object(value: Any, what: str) -> dict[str, Any]:
    """A dict; null counts as empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Problem(422, "object", f"{what} is a JSON object")
    return value
