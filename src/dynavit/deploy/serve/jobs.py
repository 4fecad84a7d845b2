"""The words of the scheduler: jobs, batches, what happens to jobs, and refusals. Plain data."""

import math
from dataclasses import dataclass, field
from typing import Literal

Why = Literal["confident", "last", "cap", "deadline", "degraded"]
Reason = Literal["queue_full", "client_limit", "draining", "would_miss_deadline"]
OnDeadline = Literal["best", "fail"]


class Refused(Exception):
    """A job that was not admitted. `retry_after` are whole seconds."""

    def __init__(self, reason: Reason, retry_after: int) -> None:
        super().__init__(f"{reason}: try again in {retry_after} s")
        self.reason, self.retry_after = reason, retry_after


class OutOfMemory(Exception):
    """A step that did not fit into memory; smaller batches may."""


def named(error: Exception) -> Exception:
    """The error, or `OutOfMemory` where that is what it says: torch has a class for it on GPUs and words on CPUs."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or "out of memory" in text or "not enough memory" in text or "bad allocation" in text:
        told = OutOfMemory(str(error))
        told.__cause__ = error
        return told
    return error


@dataclass(eq=False)
class Job:
    """One image on its way. `exit` is the one it waits for or runs."""

    id: int  # in the order of arrival
    client: str
    arrival: float
    thresholds: tuple[float, ...]
    cap: int
    tag: float  # its turn among the clients at exit 1
    peak: int  # the most bytes that it will carry between exits
    deadline: float | None = None
    on_deadline: OnDeadline = "best"
    asked: tuple[tuple[float, ...], int] | None = None  # thresholds and cap before degradation
    exit: int = 1
    confidences: list[float] = field(default_factory=list)
    queued: bool = False
    running: bool = False
    over: bool = False  # a terminal state was told
    reserved: bool = False
    carried: int = 0  # bytes, at present
    origin: int = 0  # number of the batch it came out of
    retried: bool = False  # after a step that raised: runs alone, once more

    @property
    def best(self) -> int | None:
        """The deepest exit with an answer."""
        done = [exit for exit, confidence in enumerate(self.confidences, start=1) if not math.isnan(confidence)]
        return done[-1] if done else None


@dataclass(frozen=True)
class Batch:
    """Jobs that run an exit together. `rule` says why: urgent, ripe, pressure or rest."""

    exit: int
    jobs: tuple[int, ...]
    rule: str
    regrouped: int = 0  # of its jobs, if they come from at least two former batches


@dataclass(frozen=True)
class Answered:
    """The answer is that of `exit`."""

    job: int
    why: Why
    exit: int


@dataclass(frozen=True)
class Continues:
    """It now waits for `exit`."""

    job: int
    exit: int


@dataclass(frozen=True)
class Failed:
    """Its step raised, alone; or the confidence at its last exit was no number."""

    job: int
    reason: Literal["error", "out_of_memory", "not_finite"]
    error: BaseException | None = None


@dataclass(frozen=True)
class Expired:
    """Its deadline passed without an answer to give."""

    job: int


@dataclass(frozen=True)
class Cancelled:
    """Nobody waits for it any more."""

    job: int


Event = Answered | Continues | Failed | Expired | Cancelled
