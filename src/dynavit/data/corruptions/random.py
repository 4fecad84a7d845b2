"""Random numbers that belong to a sample, so that it is corrupted in the same way in every batch and process."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..sampling import uniform

SMALLEST = 2.0**-54  # stands in for 0, whose normal quantile is infinite; `uniform` gives nothing between


@dataclass(frozen=True)
class Numbers:
    """`index` (b,) numbers the samples. Numbers that are drawn twice for one corruption come from two streams."""

    seed: int
    index: Tensor

    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """(b, *shape) in [0, 1)."""
        return uniform(self.seed, stream, self.index, prod(shape)).view(-1, *shape)

    def normal(self, *shape: int, stream: int = 0) -> Tensor:
        """(b, *shape), mean 0 and standard deviation 1."""
        return torch.special.ndtri(self.uniform(*shape, stream=stream).clamp(min=SMALLEST))

    def angle(self, low: float, high: float, stream: int = 0) -> Tensor:
        """(b,) between two numbers of degrees, in radians."""
        return torch.deg2rad(low + (high - low) * self.uniform(1, stream=stream)[:, 0])
