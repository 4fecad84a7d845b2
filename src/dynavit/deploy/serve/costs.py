"""Seconds of a step, as a line a + c * batch for each exit: measured at the start and refreshed while running."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .jobs import OutOfMemory, named

LEAST = 1e-7  # seconds; a line that is flat or falls would make batches of any size free
DECAY = 0.98  # weight of what is known when a new observation comes in
ENOUGH = 20  # observations for a line of their own
MOST = 4.0  # times the expected: what is longer was a busy moment of the machine, and counts as so much


@dataclass(frozen=True)
class Line:
    """fixed + each * batch."""

    fixed: float
    each: float

    def __call__(self, batch: int) -> float:
        return self.fixed + self.each * batch


class _Fit:
    """A line through weighted points by least squares, with neither part negative."""

    def __init__(self) -> None:
        self.n = self.b = self.bb = self.t = self.bt = 0.0

    def add(self, batch: int, seconds: float, decay: float = 1.0) -> None:
        old = (self.n, self.b, self.bb, self.t, self.bt)
        new = (1.0, batch, batch * batch, seconds, batch * seconds)
        self.n, self.b, self.bb, self.t, self.bt = (decay * mine + more for mine, more in zip(old, new, strict=True))

    @property
    def spread(self) -> float:
        """The variance of batch sizes."""
        return self.bb / self.n - (self.b / self.n) ** 2

    def line(self) -> Line:
        batch, seconds = self.b / self.n, self.t / self.n
        free = max(seconds / batch, LEAST)  # a line without fixed part
        if self.spread < 1e-9:
            return Line(0.0, free)
        each = min(max((self.bt / self.n - batch * seconds) / self.spread, LEAST), free)
        return Line(max(seconds - each * batch, 0.0), each)


class Costs:
    """`costs(exit, batch)` are seconds, exits from 1. `observe` moves the lines to what steps take now."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = list(lines)
        self._seen = [_Fit() for _ in lines]

    @classmethod
    def fitted(cls, points: Sequence[Iterable[tuple[int, float]]]) -> "Costs":
        """From measured (batch, seconds) of each exit."""
        lines = []
        for measured in points:
            fit = _Fit()
            for batch, seconds in measured:
                fit.add(batch, seconds)
            lines.append(fit.line())
        return cls(lines)

    def __call__(self, exit: int, batch: int) -> float:
        return self.lines[exit - 1](batch)

    def observe(self, exit: int, batch: int, seconds: float) -> None:
        """A step of this size took so long."""
        line, seen = self.lines[exit - 1], self._seen[exit - 1]
        seconds = min(seconds, MOST * line(batch))
        seen.add(batch, seconds, DECAY)
        if seen.n >= ENOUGH and seen.spread >= 1:
            self.lines[exit - 1] = seen.line()
        else:  # sizes too much alike to tell the two parts apart: the line keeps its form
            times = 1 + (1 - DECAY) * (seconds / line(batch) - 1)
            self.lines[exit - 1] = Line(line.fixed * times, max(line.each * times, LEAST))

    def profitable(self, exit: int, most: int, epsilon: float) -> int:
        """b*: from this size on, more company saves less than `epsilon` per image."""
        line = self.lines[exit - 1]
        if line.fixed >= most * epsilon * line.each:
            return most
        return max(1, -int(-line.fixed // (epsilon * line.each)))


class Steps(Protocol):
    """What can be measured: see `model.ServedModel`."""

    def begin(self, entries: Sequence[Any]) -> Any: ...

    def step(self, state: Any) -> tuple[Any, Any]: ...


def measure(
    model: Steps,
    entry: Any,
    limits: Sequence[int],
    *,
    repeats: int = 3,
    longest: float = 0.5,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[list[tuple[int, float]]], list[int]]:
    """Least of (batch, seconds) for batches 1, 2, 4, ... of each exit, and the limits, lowered to what fits into memory.

    Preparing a batch counts as part of exit 1.

    Args:
        entry: an image as it waits for exit 1.
        limits: largest batch of each exit.
        longest: where a step takes longer, larger batches are not tried; they follow from the line.
    """
    found: list[list[tuple[int, float]]] = [[] for _ in limits]
    batch, most = 1, max(limits)
    _pass_all(model, entry, 1, len(limits), clock)  # warms up
    while batch <= most:
        try:
            rounds = [_pass_all(model, entry, batch, len(limits), clock) for _ in range(repeats)]
        except Exception as error:
            if not isinstance(named(error), OutOfMemory):
                raise
            return found, [min(limit, batch // 2) for limit in limits]
        times = [min(column) for column in zip(*rounds, strict=True)]  # other work on the machine only ever adds time
        for points, seconds, limit in zip(found, times, limits, strict=True):
            if batch <= limit:
                points.append((batch, seconds))
        if max(times) > longest:
            break
        batch *= 2
    return found, list(limits)


def _pass_all(model: Steps, entry: Any, batch: int, exits: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each exit."""
    times, before = [], clock()
    state = model.begin([entry] * batch)
    for _ in range(exits):
        _, state = model.step(state)
        now = clock()
        times.append(now - before)
        before = now
    return times
