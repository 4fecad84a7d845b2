"""How far images go: the share that leaves at each exit, learnt from those that came by, and the work that lies ahead."""

from collections.abc import Sequence

from .costs import Costs

RATE = 1 / 256  # weight of the image seen last


class Forecast:
    """`leaving[k]` is the share that leaves at exit k + 1 of those that reach it; `shares` of all images are a first guess."""

    def __init__(self, exits: int, shares: Sequence[float] | None = None) -> None:
        shares = shares or [1 / exits] * exits
        inside = [sum(shares[k:]) for k in range(exits)]
        self.leaving = [share / reach if reach else 1.0 for share, reach in zip(shares, inside, strict=True)]
        self.leaving[-1] = 1.0

    def saw(self, exit: int, left: bool) -> None:
        self.leaving[exit - 1] += RATE * (left - self.leaving[exit - 1])

    def work(self, costs: Costs, batches: Sequence[int]) -> list[float]:
        """Expected seconds of the device for a job that waits for each exit, in batches of these sizes."""
        ahead, work = 0.0, []
        for exit in range(len(batches), 0, -1):
            batch = batches[exit - 1]
            ahead = costs(exit, batch) / batch + (1 - self.leaving[exit - 1]) * ahead
            work.append(ahead)
        return work[::-1]
