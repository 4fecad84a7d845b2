"""What a request is willing to pay.

A *target* is a mean over many images, as on the calibration set: level, gmacs, accuracy, latency_ms, thresholds; at most one.
A *limit* holds for this very image: max_exit, max_gmacs, deadline_ms. `curve.Curve` turns both into thresholds and a deepest
exit, and `decide` is the rule by which an image then leaves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple

from ...common.fits import AtLeastOne, Fraction, Positive, Range, check_fits

TARGETS = ("level", "gmacs", "accuracy", "latency_ms", "thresholds")
Milliseconds = Annotated[float, Range(above=0, most=86_400_000)]


class BudgetError(ValueError):
    """A budget that cannot be met; `reachable` are the values that can, {name: [least, most]}."""

    def __init__(self, message: str, reachable: Mapping[str, Sequence[float]] | None = None) -> None:
        super().__init__(message)
        self.reachable = {name: list(ends) for name, ends in (reachable or {}).items()}


@dataclass(frozen=True)
class Budget:
    """At most one target, and any limits; without a target the thresholds are those that the model came with.

    Attributes:
        level: position on the calibration curve, 0: all images leave at exit 1, 1: all at the last.
        gmacs: at most so many GMACs per image, on average.
        accuracy: at least this accuracy at the least cost.
        latency_ms: at most so many milliseconds of computing per image, on average, on this machine.
        thresholds: the confidence that is enough, one for each exit but the last.
        max_exit: the deepest exit for this image.
        max_gmacs: the most that this image may cost.
        deadline_ms: the time by which an answer is wanted, from the last byte of the request on.
        on_deadline: the best answer so far, or none.
        degrade: an overloaded server may answer earlier, if its operator allows that too.
    """

    level: Fraction | None = None
    gmacs: Positive | None = None
    accuracy: Fraction | None = None
    latency_ms: Positive | None = None
    thresholds: tuple[float, ...] | None = None
    max_exit: AtLeastOne | None = None
    max_gmacs: Positive | None = None
    deadline_ms: Milliseconds | None = None
    on_deadline: Literal["best", "fail"] = "best"
    degrade: bool = False

    @property
    def target(self) -> str | None:
        """The name of its target."""
        return next((name for name in TARGETS if getattr(self, name) is not None), None)

    def plain(self) -> dict[str, Any]:
        """The fields that say something, for JSON."""
        said = {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) != field.default}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}


def parse_budget(mapping: Mapping[str, Any]) -> Budget:
    """A budget from JSON.

    >>> parse_budget({"gmacs": 1.2, "max_exit": 2}).plain()
    {'gmacs': 1.2, 'max_exit': 2}
    """
    try:
        check_fits(Budget, mapping, "budget")
    except ValueError as error:
        raise BudgetError(str(error)) from error
    given = [name for name in TARGETS if mapping.get(name) is not None]
    if len(given) > 1:
        raise BudgetError(
            f"a budget has one target, got {' and '.join(given)}; limits ({', '.join(LIMITS)}) may stand beside it"
        )
    plain: dict[str, Any] = dict(mapping)
    if plain.get("thresholds") is not None:
        plain["thresholds"] = tuple(map(float, plain["thresholds"]))
    return Budget(**plain)


LIMITS = ("max_exit", "max_gmacs", "deadline_ms")


def parse_budget_words(words: Mapping[str, str]) -> Budget:
    """A budget from texts, as in a query or on the command line; thresholds are separated by commas.

    >>> parse_budget_words({"thresholds": "0.9,0.8", "on_deadline": "fail"}).plain()
    {'thresholds': [0.9, 0.8], 'on_deadline': 'fail'}
    """
    return parse_budget({name: _value(name, text) for name, text in words.items()})


def parse_budget_text(text: str) -> Budget:
    """A budget from one text, gmacs=1.2 max_exit=2: its parts are separated by spaces.

    >>> parse_budget_text("gmacs=1.2 max_exit=2").plain()
    {'gmacs': 1.2, 'max_exit': 2}
    """
    pairs = [word.partition("=") for word in text.split()]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        raise BudgetError(f"a budget is written as name=value, such as gmacs=1.2; got {wrong[0]!r}")
    return parse_budget_words({name: value for name, _, value in pairs})


def _value(name: str, text: str) -> Any:
    """A text as the value it stands for; one that stands for none is left to the check, which names it."""
    try:
        if name == "thresholds":
            return [float(part) for part in text.split(",")]
        if name == "max_exit":
            return int(text)
        if name == "degrade":
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        return text if name == "on_deadline" else float(text)
    except ValueError:
        return text


class Decision(NamedTuple):
    """An image leaves at this exit."""

    exit: int
    why: Literal["confident", "last", "cap"]


def decide(confidences: Sequence[float], thresholds: Sequence[float], cap: int) -> Decision | None:
    """Where an image leaves, from the confidences of exits 1, 2, ... as far as they are known; None: it has to go on.

    It leaves at the first exit whose confidence is at least its threshold, at the cap at the latest. NaN is never enough.

    >>> decide([0.5, 0.9, 0.7], [0.8, 0.8], 3)
    Decision(exit=2, why='confident')
    >>> decide([0.5], [0.8, 0.8], 3), decide([0.5], [0.8, 0.8], 1)
    (None, Decision(exit=1, why='cap'))
    """
    exits = len(thresholds) + 1
    for exit, confidence in enumerate(confidences[:cap], start=1):
        if exit < exits and confidence >= thresholds[exit - 1]:
            return Decision(exit, "confident")
        if exit == cap:
            return Decision(exit, "last" if exit == exits else "cap")
    return None


def finite(number: float | None) -> float | None:
    """A number that JSON can hold, None for another."""
    return number if number is not None and math.isfinite(number) else None
