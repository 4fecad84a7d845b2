"""Time that a run took, over all its sessions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

from ..common.fits import NotNegative


class ClockState(TypedDict):
    """Seconds that a later session begins with."""

    seconds: NotNegative
    training_seconds: float
    lap_began: float


class Clock:
    """Seconds in all, and of training alone: steps with their data, without evaluation and saving.

    Begins where the clock of an earlier session had stopped.
    """

    def __init__(self, seconds: float = 0.0, training_seconds: float = 0.0, lap_began: float = 0.0) -> None:
        self.began = time.perf_counter() - seconds
        self.idle = seconds - training_seconds
        self.lap_began = lap_began
        self.paused_at: float | None = None

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def training_seconds(self) -> float:
        now = time.perf_counter() if self.paused_at is None else self.paused_at
        return now - self.began - self.idle

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.paused_at = time.perf_counter()
        try:
            yield
        finally:
            self.idle += time.perf_counter() - self.paused_at
            self.paused_at = None

    def lap(self, images: int) -> dict[str, float]:
        """For a log line; the rate is over the training since the line before."""
        now = self.training_seconds()
        rate = images / max(now - self.lap_began, 1e-9)
        self.lap_began = now
        return {"seconds": round(self.seconds(), 4), "training_seconds": round(now, 4), "images_per_second": round(rate, 2)}

    def state(self) -> ClockState:
        return {"seconds": self.seconds(), "training_seconds": self.training_seconds(), "lap_began": self.lap_began}
