"""The order of an epoch in which images of one orientation share a batch, so that little is padded.

A pure function of (seed, epoch), like all sampling here: a run that is resumed in the middle of an epoch sees the same batches.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ...common.data import LoaderOptions
from ..sampling import Part, derive_seed, epoch_draws, step_parts, steps_in

_ORDER = 1  # tells this use of the seed from the others


def oriented_steps(tall: Tensor, how: LoaderOptions, epoch: int, start: int = 0) -> Iterator[tuple[int, list[Part]]]:
    """(step, micro-batches of this process) of a training epoch from step `start` on; `tall` (n,) is the orientation."""
    draws = oriented_draws(tall, how.batch_size, how.seed, epoch)
    for step in range(start, steps_in(len(tall), how.batch_size)):
        yield step, step_parts(draws, how.batch_size, step, how.rank, how.world, how.accumulate)


def oriented_draws(tall: Tensor, batch_size: int, seed: int, epoch: int) -> Tensor:
    """Every sample once: whole batches of one orientation in random order, then what is left over of both."""
    order = epoch_draws(len(tall), seed, epoch)
    groups = [order[~tall[order]], order[tall[order]]]
    whole = [group[: len(group) // batch_size * batch_size].reshape(-1, batch_size) for group in groups]
    batches = torch.cat(whole)
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, _ORDER))
    batches = batches[torch.randperm(len(batches), generator=generator)]
    return torch.cat([batches.flatten(), *(group[part.numel() :] for group, part in zip(groups, whole, strict=True))])
