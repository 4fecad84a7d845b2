"""A few of many, drawn by torch's generators, which the engine seeds by (seed, step): a resumed run draws the same."""

import torch
from torch import Tensor

from .assign import NOTHING


def sample(assigned: Tensor, count: int, share: float) -> tuple[Tensor, Tensor]:
    """(n,) as `assign` gives it -> numbers of some that learn a thing, at most `share` of `count`, and of background."""
    things = _some((assigned >= 0).nonzero().flatten(), int(count * share))
    return things, _some((assigned == NOTHING).nonzero().flatten(), count - len(things))


def _some(numbers: Tensor, most: int) -> Tensor:
    if len(numbers) <= most:
        return numbers
    return numbers[torch.randperm(len(numbers))[:most].to(numbers.device)]
