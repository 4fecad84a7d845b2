"""Values that fit their type hint: the one check of options and of files, made where they enter.

    @dataclass
    class Options:
        epochs: Annotated[float, Range(above=0)] = 20
        betas: tuple[Fraction, Fraction] = (0.9, 0.999)

    class Manifest(TypedDict):
        files: dict[str, Entry]

A hint is a type, a Literal, a union, a list, tuple or dict of hints, a dataclass, a TypedDict, or Annotated with a `Range`.
JSON has lists where tuples are meant, and knows no NaN: numbers are finite.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .registry import nearest_match_error

LONGEST = 60  # letters of a value in a message


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers that are allowed: from `least` to `most`, greater than `above` and less than `below`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __repr__(self) -> str:
        limits = {"at least": self.least, "greater than": self.above, "at most": self.most, "less than": self.below}
        return " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)


Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Fraction = Annotated[float, Range(least=0, most=1)]
Share = Annotated[float, Range(least=0, below=1)]
Count = Annotated[int, Range(least=0)]
AtLeastOne = Annotated[int, Range(least=1)]
Seed = Count
Pixels = Annotated[int, Range(least=1, most=2**16)]


def check_fits(hint: Any, value: Any, where: str = "") -> None:
    """ValueError that names the first field that does not fit, what it holds, and what it may hold.

    >>> check_fits(dict[str, Positive], {"lr": 0.1, "epochs": -1})
    Traceback (most recent call last):
    ValueError: epochs=-1: a number greater than 0
    """
    for problem in misfits(hint, value, where):
        raise problem


def misfits(hint: Any, value: Any, where: str) -> Iterator[ValueError]:
    """An error for each thing that does not fit."""
    if hint is Any or isinstance(hint, str | ForwardRef):
        return
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        yield from misfits(inner[0], value, where)
    elif origin is Annotated:
        found = list(misfits(inner[0], value, where))
        ranges = [each for each in inner[1:] if isinstance(each, Range)]
        if found or any(value not in each for each in ranges):
            yield _said(where, " ".join([_name(inner[0]), *map(repr, ranges)]), value)
    elif origin in (Union, UnionType):
        ways = [way for way in inner if way is not NoneType]
        if (value is None and len(ways) < len(inner)) or any(not list(misfits(way, value, where)) for way in ways):
            return
        yield from misfits(ways[0], value, where) if len(ways) == 1 else [_said(where, " or ".join(map(_name, ways)), value)]
    elif origin is Literal:
        if value not in inner:
            words = [str(word) for word in inner]
            yield nearest_match_error(where, value, words) if isinstance(value, str) else _said(where, _name(hint), value)
    elif origin in (list, tuple) or hint in (list, tuple):
        yield from _misfits_of_items(hint, value, where)
    elif origin is dict or hint is dict:
        if not isinstance(value, dict):
            yield _said(where, _name(hint), value)
            return
        for key, item in value.items():
            if inner:
                yield from misfits(inner[0], key, f"the name {key!r} in {where or 'it'}")
                yield from misfits(inner[1], item, _below(where, key))
    elif is_typeddict(hint):
        yield from _misfits_of_fields(hint, value, where, hint.__required_keys__)
    elif dataclasses.is_dataclass(hint):
        yield from _misfits_of_object(hint, value, where)
    elif not _is_a(hint, value):
        yield _said(where, _name(hint), value)


def _misfits_of_items(hint: Any, value: Any, where: str) -> Iterator[ValueError]:
    inner = get_args(hint)
    if not isinstance(value, list | tuple):
        yield _said(where, _name(hint), value)
        return
    several = not inner or get_origin(hint) is list or inner[-1] is Ellipsis
    if not several and len(value) != len(inner):
        yield _said(where, f"a list of {len(inner)}", value)
        return
    for number, item in enumerate(value):
        if inner:
            yield from misfits(inner[0] if several else inner[number], item, f"{where}[{number}]")


def _misfits_of_fields(kind: Any, value: Any, where: str, required: frozenset[str]) -> Iterator[ValueError]:
    if not isinstance(value, Mapping):
        yield _said(where, "names and values", value)
        return
    hints = _hints(kind)
    for name in sorted(required - value.keys()):
        yield ValueError(f"{_below(where, name)} is missing")
    for name in hints.keys() & value.keys():
        yield from misfits(hints[name], value[name], _below(where, name))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Those of a class do not change, and to find them takes longer than all the rest: every request has a budget to check."""
    return get_type_hints(kind, include_extras=True)


def _misfits_of_object(kind: Any, value: Any, where: str) -> Iterator[ValueError]:
    """A dataclass, or the dict it was written as."""
    fields = dataclasses.fields(kind)
    if isinstance(value, Mapping):
        needed = frozenset(f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING)
        for name in value.keys() - {f.name for f in fields}:
            yield nearest_match_error("field", _below(where, name), [_below(where, f.name) for f in fields])
        yield from _misfits_of_fields(kind, value, where, needed)
    elif not isinstance(value, kind):
        yield _said(where, "names and values", value)
    else:
        plain = {f.name: getattr(value, f.name) for f in fields}
        yield from _misfits_of_fields(kind, plain, where, frozenset())


def _is_a(hint: Any, value: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if hint is Path:
        return isinstance(value, str | Path)
    if hint is None:
        return value is None
    return isinstance(value, hint)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float can hold
        return False


def _name(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", Path: "a path"}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([_name(inner[0]), *(repr(each) for each in inner[1:] if isinstance(each, Range))])
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (list, tuple) or hint in (list, tuple):
        return "a list"
    return names.get(hint, "names and values")


def _said(where: str, wanted: str, value: Any) -> ValueError:
    text = repr(value)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return ValueError(f"{where}={text}: {wanted}" if where else f"{text}: {wanted}")


def _below(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)
