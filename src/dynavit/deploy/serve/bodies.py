"""The three ways to send images: one as the body itself, several as parts of a form, several as base64 inside JSON.

Never a path and never an address: there is nothing for a server to be tricked into opening. Nothing touches the disk.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from .budget import Budget, BudgetError, parse_budget, parse_budget_words
from .images import FORMATS
from .limits import Limits
from .problems import Problem
from .service import Upload, budget_problem

LARGE = 256 << 10  # bytes
MOST_TOP = 10
OWN_WORDS = ("top", "probabilities")  # of a query, beside the budget
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Asked:
    """A request for answers."""

    uploads: list[Upload]
    budget: Budget | None
    top: int = 1
    probabilities: bool = False


async def read_asked(body: bytes, content_type: str, query: Mapping[str, str], limits: Limits) -> Asked:
    """What a request asks for, whichever way it came."""
    kind, _, _ = content_type.partition(";")
    kind = kind.strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":  # which image it is, its content says
        return Asked([Upload(body)], *_options_of_query(query))
    if query:
        raise Problem(422, "query", "a query goes with one image as the body; here the budget stands in the body")
    if kind == "multipart/form-data":
        uploads, options = await _read_form(body, content_type, limits)
        if not isinstance(options, dict):
            raise Problem(422, "options", "the part options is a JSON object")
        return _checked(uploads, options, ("budget", *OWN_WORDS), limits)
    if kind == "application/json":
        if len(body) > LARGE:  # megabytes of base64 would hold the event loop up
            return await asyncio.to_thread(_read_plain, body, limits)
        return _read_plain(body, limits)
    raise Problem(
        415,
        "content_type",
        f"the Content-Type {kind[:100]!r} is not taken",
        hint=f"{', '.join(FORMATS.values())}, multipart/form-data or application/json",
    )


def _read_plain(body: bytes, limits: Limits) -> Asked:
    plain = read_json(body, limits)
    if not isinstance(plain, dict) or not isinstance(plain.get("images"), list):
        raise Problem(422, "images", 'images is a list: {"images": [{"b64": ...}]}')
    _check_count(len(plain["images"]), limits)
    uploads = [_from_json(item, at) for at, item in enumerate(plain["images"])]
    return _checked(uploads, plain, ("images", "budget", *OWN_WORDS), limits)


def read_json(body: bytes, limits: Limits) -> Any:
    """400 where it is no JSON, 422 where it is nested too deeply."""
    try:
        value = json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise Problem(400, "json", "the body is not JSON") from None
    if _depth(value, limits.max_depth) > limits.max_depth:
        raise Problem(422, "json_depth", f"JSON may be nested {limits.max_depth} deep")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Of a name that stands there twice, readers would disagree which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Problem(400, "json", "a name stands twice in an object of the JSON")
    return found


def read_budget(plain: Any) -> Budget | None:
    """A budget object of JSON; None where there is none."""
    if plain is None:
        return None
    if not isinstance(plain, dict):
        raise Problem(422, "budget", 'a budget is an object, such as {"gmacs": 1.2}')
    try:
        return parse_budget(plain)
    except BudgetError as error:
        raise budget_problem(error) from error
    except OverflowError:
        raise Problem(422, "budget", "a budget has numbers of ordinary size") from None


def _options_of_query(query: Mapping[str, str]) -> tuple[Budget | None, int, bool]:
    words = {name: value for name, value in query.items() if name not in OWN_WORDS}
    try:
        budget = parse_budget_words(words) if words else None
    except BudgetError as error:
        raise budget_problem(error) from error
    top, flag = query.get("top", "1"), query.get("probabilities", "false").lower()
    if flag not in FLAGS:
        raise Problem(422, "probabilities", "probabilities is true or false")
    return budget, _top(int(top) if top.isascii() and top.isdigit() and len(top) < 4 else top), FLAGS[flag]


def _checked(uploads: list[Upload], options: dict[str, Any], known: tuple[str, ...], limits: Limits) -> Asked:
    _check_count(len(uploads), limits)
    if unknown := sorted(set(options) - set(known)):
        raise Problem(422, "field", f"there is no field {unknown[0][:100]!r}", hint=", ".join(known))
    flag = options.get("probabilities", False)
    if not isinstance(flag, bool):
        raise Problem(422, "probabilities", "probabilities is true or false")
    return Asked(uploads, read_budget(options.get("budget")), _top(options.get("top", 1)), flag)


def _check_count(count: int, limits: Limits) -> None:
    if not count:
        raise Problem(422, "images", "there is no image in the request")
    if count > limits.max_images:
        raise Problem(413, "too_many_images", f"a request may have {limits.max_images} images, this one has {count}")


def _top(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MOST_TOP:
        raise Problem(422, "top", f"top is a whole number from 1 to {MOST_TOP}")
    return value


def _from_json(item: Any, at: int) -> Upload:
    if not isinstance(item, dict) or set(item) - {"b64", "id"} or not isinstance(item.get("b64"), str):
        raise Problem(422, "images", f'images[{at}] is {{"b64": base64 of a file, "id": text or nothing}}')
    name = item.get("id")
    if name is not None and not (isinstance(name, str) and len(name) <= 256 and _is_whole(name)):
        raise Problem(422, "images", f"images[{at}].id is a text of at most 256 letters")
    return Upload(unpacked(item["b64"], f"images[{at}].b64"), name)


def _is_whole(text: str) -> bool:
    """JSON can spell half a letter of UTF-16, which no answer could repeat."""
    return text == text.encode(errors="replace").decode()


def unpacked(text: str, field: str) -> bytes:
    """The bytes of a base64 text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, "base64", f"{field} is not base64") from None


async def _read_form(body: bytes, content_type: str, limits: Limits) -> tuple[list[Upload], Any]:
    """Parts named image are files, the part named options is JSON."""
    from starlette.datastructures import Headers, UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    class InMemory(MultiPartParser):
        spool_max_size = limits.max_body + 1  # so that no part is ever written to the disk

    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    parser = InMemory(
        Headers({"content-type": content_type}),
        whole(),
        max_files=limits.max_images + 1,
        max_fields=8,
        max_part_size=limits.max_body,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, UnicodeError):
        raise Problem(
            400, "multipart", "the body is not a form of the kind its Content-Type says, or has too many parts"
        ) from None
    uploads: list[Upload] = []
    options: Any = {}
    try:
        for name, part in form.multi_items():
            data = await part.read() if isinstance(part, UploadFile) else part.encode()
            if name == "image":
                uploads.append(Upload(data, _short(part.filename) if isinstance(part, UploadFile) else None))
            elif name == "options":
                options = read_json(data, limits)
            else:
                raise Problem(422, "field", f"there is no part {name[:100]!r}; parts are image, and options as JSON")
    finally:
        await form.close()
    return uploads, options


def _short(name: str | None) -> str | None:
    """A file's name comes back as the id of its answer, and is used for nothing else."""
    return name[:256].encode(errors="replace").decode() if name else None


def _depth(value: Any, most: int) -> int:
    """Levels of nesting, counted to one beyond `most`.

    >>> _depth([[1], {"a": [2]}], 16), _depth([[[[]]]], 2)
    (3, 3)
    """
    depth, level = 0, [value]
    while depth <= most:
        nested = [item for item in level if isinstance(item, list | dict)]
        if not nested:
            break
        depth, level = depth + 1, [item for outer in nested for item in _inside(outer)]
    return depth


def _inside(value: list[Any] | dict[str, Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
