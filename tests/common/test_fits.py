"""Values and their type hints: what fits passes, the first misfit is named with what is allowed."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from dynavit.common.files import read_json
from dynavit.common.fits import AtLeastOne, Count, Fraction, Positive, Range, Share, check_fits


@dataclass
class Inner:
    clip: Positive = 1.0
    kind: Literal["a", "b"] = "a"


@dataclass
class Options:
    name: str
    betas: tuple[Share, Share] = (0.9, 0.99)
    inner: Inner = field(default_factory=Inner)
    threads: Annotated[int, Range(1, 8)] | None = None


class File(TypedDict):
    sizes: dict[str, Count]
    rows: list[list[float]]
    extra: NotRequired[str | int]


FITTING = [
    (float, 3), (float, -0.5), (int, -3), (str, ""), (bool, True), (Any, object()), (None, None),
    (Positive, 1e-9), (AtLeastOne, 1), (Fraction, 1), (Share, 0.0), (list[int], []), (tuple[int, ...], [1, 2]),
    (tuple[int, str], [1, "x"]), (Options, {"name": "x", "betas": [0, 0.5]}), (Options, Options("x", threads=8)),
    (File, {"sizes": {}, "rows": [[1, 2.5]], "more": object()}), (str | None, None),
]  # fmt: skip

MISFITS = [
    (float, float("nan"), "nan: a number"),
    (float, float("inf"), "inf: a number"),
    (float, 10**400, r"1000+\.\.\.: a number"),
    (float, True, "True: a number"),
    (float, "3", "'3': a number"),
    (int, 1.0, "1.0: a whole number"),
    (int, 2**63, "9223372036854775808: a whole number"),
    (Positive, 0, "0: a number greater than 0"),
    (Positive, [], r"\[\]: a number greater than 0"),
    (Share, 1, "1: a number at least 0 and less than 1"),
    (Literal["a", "bcd"], "bce", "Did you mean 'bcd'"),
    (Literal["a", "b"], ["a"], r"\['a'\]: one of a, b"),
    (list[Count], [0, -1], r"\[1\]=-1: a whole number at least 0"),
    (tuple[int, int], [1], r"\[1\]: a list of 2"),
    (str | None, 3, "3: a text"),
    (str | int, [], r"\[\]: a text or a whole number"),
    (Options, {}, "name is missing"),
    (Options, [], r"\[\]: names and values"),
    (Options, {"name": "x", "inner": {"clip": 0}}, "inner.clip=0: a number greater than 0"),
    (Options, {"name": "x", "inner": {"clop": 0}}, "unknown field 'inner.clop'. Did you mean 'inner.clip'"),
    (Options, Options("x", threads=9), "threads=9: a whole number at least 1 and at most 8"),
    (Options, Options("x", inner=Inner(kind="c")), "unknown inner.kind 'c'. Known: a, b"),
    (File, {"sizes": {}}, "rows is missing"),
    (File, {"sizes": {"a": 1.5}, "rows": []}, "sizes.a=1.5: a whole number at least 0"),
    (File, {"sizes": {}, "rows": [[0], [None]]}, r"rows\[1\]\[0\]=None: a number"),
]


@pytest.mark.parametrize(("hint", "value"), FITTING)
def test_what_fits(hint, value):
    check_fits(hint, value)


@pytest.mark.parametrize(("hint", "value", "message"), MISFITS)
def test_what_does_not_fit(hint, value, message):
    with pytest.raises(ValueError, match=message):
        check_fits(hint, value)


DAMAGED = ["", "{", "nul", "[]", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "[" * 100_000, "9" * 5000, b"\xff\xfe"]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_json_file_that_is_damaged_is_named(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="x.json is damaged, or not from this version: ."):
        read_json(path, dict[str, float])


def test_files_that_are_none(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.json")
    for name in ("pipe.json", "."):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_json(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"absent\.json"):
        read_json(tmp_path / "absent.json")
