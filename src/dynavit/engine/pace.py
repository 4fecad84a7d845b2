"""The speed of an evaluation: that of the model, apart from the time that is spent waiting for samples."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from .processes import Processes

T = TypeVar("T")


class Pace:
    """Stopwatches of one pass over a split.

    The first batch also pays for what happens once (reading processes that start, memory and caches), so the model's speed is
    that of the others, where there are any.

    Attributes:
        loading: seconds of waiting for samples; reading processes work on while the model computes.
        model: seconds in the model and its metrics, of all batches.
    """

    def __init__(self) -> None:
        self.loading = self.model = self.first = 0.0
        self.batches = self.samples = self.first_samples = 0
        self.began = time.perf_counter()

    def waiting(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; the time until each is there counts as loading."""
        iterator = iter(batches)
        while True:
            start = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.loading += time.perf_counter() - start
            yield batch

    @contextmanager
    def computing(self, samples: int, device: torch.device) -> Iterator[None]:
        """Around the model at work on a batch."""
        start = time.perf_counter()
        yield
        if device.type != "cpu":
            torch.accelerator.synchronize(device)  # it is still computing when the call returns
        spent = time.perf_counter() - start
        self.model += spent
        self.samples += samples
        self.batches += 1
        if self.batches == 1:
            self.first, self.first_samples = spent, samples

    def report(self, processes: Processes) -> dict[str, Any]:
        """Of all processes together. Samples that several processes share are evaluated at the same time."""
        alone = self.batches == 1
        whole = time.perf_counter() - self.began
        timed = (self.model, self.samples) if alone else (self.model - self.first, self.samples - self.first_samples)
        numbers = {"seconds": timed[0], "samples": timed[1], "all": self.samples, "model": self.model}
        numbers |= {"loading": self.loading, "whole": whole}
        sums = processes.sum({name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()})
        total = {name: float(number) for name, number in sums.items()}
        mean = {name: total[name] / processes.world for name in ("seconds", "model", "loading", "whole")}
        return {
            "model_images_per_second": total["samples"] / max(mean["seconds"], 1e-9),
            "images_per_second_with_loading": total["all"] / max(mean["whole"], 1e-9),
            "seconds": {name: mean[name] for name in ("model", "loading", "whole")},
        }
