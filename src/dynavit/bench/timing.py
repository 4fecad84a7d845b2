"""Interleaved timing: every round runs all contestants, so that whatever else the machine does hits them alike."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .device import CPU, wait_for


@dataclass(frozen=True)
class Timing:
    """Seconds per call in each round."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def ratio(self, other: "Timing") -> tuple[float, float, float]:
        """Time of this one as a multiple of `other`: the median over rounds, and the quartiles."""
        ratios = sorted(mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=True))
        if len(ratios) < 2:
            return ratios[0], ratios[0], ratios[0]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return middle, low, high


def time_interleaved(
    calls: Mapping[str, Callable[[], object]],
    repeats: int = 30,
    inner: int = 3,
    warmup: int = 3,
    device: torch.device = CPU,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time each call in `repeats` rounds.

    In its turn a contestant first runs once untimed, so that it does not pay for a cache the one before it has filled,
    and then `inner` times by the clock. The clock is read when `device`, on which the calls work, has nothing left to do.
    `clock=time.process_time` is for one thread on a machine that others use too.
    """
    for _ in range(warmup):
        for call in calls.values():
            call()
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, call in calls.items():
                call()
                wait_for(device)
                start = clock()
                for _ in range(inner):
                    call()
                wait_for(device)
                rounds[name].append((clock() - start) / inner)
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(seconds) for name, seconds in rounds.items()}
