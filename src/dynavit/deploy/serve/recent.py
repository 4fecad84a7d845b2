"""The last minute in exact numbers: what the live panel shows."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

SPAN = 60  # seconds
SAMPLES = 4096


class Recent:
    """Counts per second over the last minute, and the latest times.

    Args:
        exits: how many the model has.
        clock: monotonic seconds.
    """

    def __init__(self, exits: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.exits, self.clock = exits, clock
        self.times: deque[tuple[float, float]] = deque(maxlen=SAMPLES)  # (when, seconds)
        self.seconds: deque[_Second] = deque()

    def answered(self, exit: int, gmacs: float, seconds: float) -> None:
        now = self._now()
        now.images[exit - 1] += 1
        now.gmacs += gmacs
        self.times.append((self.clock(), seconds))

    def refused(self) -> None:
        self._now().refused += 1

    def batch(self, exit: int, size: int) -> None:
        now = self._now()
        now.batches[exit - 1] += 1
        now.in_batches[exit - 1] += size

    def summary(self) -> dict[str, Any]:
        """Rates, shares, means and percentiles; None where nothing happened."""
        self._forget()
        images = self._sums("images")
        batches, in_batches = self._sums("batches"), self._sums("in_batches")
        total = sum(images)
        since = self.clock() - SPAN
        times = sorted(seconds for when, seconds in self.times if when >= since)
        return {
            "window_seconds": SPAN,
            "images": total,
            "images_per_second": sum(sum(second.images) for second in self._every_second()[-5:]) / 5,
            "refused": sum(second.refused for second in self.seconds),
            "mean_gmacs": sum(second.gmacs for second in self.seconds) / total if total else None,
            "latency_ms": {f"p{q}": 1e3 * percentile(times, q) if times else None for q in (50, 95, 99)},
            "exits": [
                {
                    "exit": k + 1,
                    "images": images[k],
                    "share": images[k] / total if total else None,
                    "batch": in_batches[k] / batches[k] if batches[k] else None,
                }
                for k in range(self.exits)
            ],
        }

    def _now(self) -> "_Second":
        at = int(self.clock())
        if not self.seconds or self.seconds[-1].at != at:
            self._forget()
            self.seconds.append(_Second(at, self.exits))
        return self.seconds[-1]

    def _forget(self) -> None:
        while self.seconds and self.seconds[0].at <= int(self.clock()) - SPAN:
            self.seconds.popleft()

    def _sums(self, field: str) -> list[int]:
        return [sum(getattr(second, field)[k] for second in self.seconds) for k in range(self.exits)]

    def _every_second(self) -> list["_Second"]:
        """The last minute without gaps; the second that is not over yet is left out."""
        known, now = {second.at: second for second in self.seconds}, int(self.clock())
        return [known.get(at) or _Second(at, self.exits) for at in range(now - SPAN, now)]


class _Second:
    def __init__(self, at: int, exits: int) -> None:
        self.at, self.gmacs, self.refused = at, 0.0, 0
        self.images, self.batches, self.in_batches = [0] * exits, [0] * exits, [0] * exits


def percentile(ordered: list[float], q: float) -> float:
    """The smallest value that q per cent of all do not exceed.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99)
    (2.0, 4.0)
    """
    return ordered[max(0, -int(-len(ordered) * q // 100) - 1)]
