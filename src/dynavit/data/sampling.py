"""The samples of each step: pure functions of (seed, epoch, step), so that nothing has to be stored to go on later, and the
same samples make up a step whatever the number of processes.

A *draw* is one visit to a sample in an epoch. Draw d visits sample d % n; with repeated augmentation (Hoffer et al., CVPR 2020)
a sample is visited several times, each visit augmented differently, because augmentation is seeded by the draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..common.data import LoaderOptions

_MIX = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # SplitMix64's constants as signed integers
_ALL = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class Part:
    """The draws of one micro-batch of one process. `count` and `step_count` as in `Batch`."""

    draws: Tensor
    count: int
    step_count: int


def epoch_steps(
    samples: int, how: LoaderOptions, epoch: int, start: int = 0, repeats: int = 1
) -> Iterator[tuple[int, list[Part]]]:
    """(step, micro-batches of this process) of an epoch from step `start` on: draws in random order, `repeats` of each sample,
    if `how.train`; otherwise each sample once and in order."""
    draws = epoch_draws(samples, how.seed, epoch, repeats) if how.train else torch.arange(samples)
    for step in range(start, steps_in(samples, how.batch_size)):
        yield step, step_parts(draws, how.batch_size, step, how.rank, how.world, how.accumulate)


def epoch_draws(samples: int, seed: int, epoch: int, repeats: int = 1) -> Tensor:
    """The draws of an epoch in random order, (samples,). With `repeats` each sample is drawn that often, and only as many
    samples as make up the usual length take part."""
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(samples, generator=generator)
    if repeats == 1:
        return order
    first = order[: -(-samples // repeats)]
    copies = first[:, None] + samples * torch.arange(repeats)  # copies of a sample are neighbours: in one global batch
    return copies.flatten()[:samples]


def step_parts(draws: Tensor, batch_size: int, step: int, rank: int = 0, world: int = 1, accumulate: int = 1) -> list[Part]:
    """The micro-batches of this process in one step: draws[step * batch_size : ...] cut as evenly as possible.

    First into micro-batches and those into processes: norms with batch statistics normalise what all processes see at a time,
    and that is to be the same whatever their number.
    """
    whole = draws[step * batch_size : (step + 1) * batch_size]
    pieces = [micro_batch.tensor_split(world)[rank] for micro_batch in whole.tensor_split(accumulate)]
    return [Part(piece if len(piece) else whole[:1], len(piece), len(whole)) for piece in pieces]


def steps_in(samples: int, batch_size: int) -> int:
    return -(-samples // batch_size)


def derive_seed(*keys: int) -> int:
    """A seed from several numbers, for generators that take one. Never negative.

    >>> derive_seed(0, 1) != derive_seed(1, 0)
    True
    """
    mixed = 0
    for key in keys:
        mixed = _mix_number(mixed ^ _mix_number(key))
    return mixed & 0x7FFF_FFFF_FFFF_FFFF


def uniform(seed: int, epoch: int, draws: Tensor, numbers: int) -> Tensor:
    """Random numbers in [0, 1) that belong to each draw, (len(draws), numbers) in float64, the same on every device."""
    base = derive_seed(seed, epoch)
    keys = _mix(_mix(draws.long() ^ base)[:, None] ^ torch.arange(1, numbers + 1, device=draws.device))
    return ((keys >> 11) & ((1 << 53) - 1)).double() / (1 << 53)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64: every bit of the result depends on every bit of x. Integers overflow on purpose."""
    x = x + _MIX[0]
    x = (x ^ _shift(x, 30)) * _MIX[1]
    x = (x ^ _shift(x, 27)) * _MIX[2]
    return x ^ _shift(x, 31)


def _mix_number(x: int) -> int:
    """`_mix` of one number between 0 and 2^64; in Python's integers, which is a hundred times faster for one."""
    x = (x + _MIX[0]) & _ALL
    x = ((x ^ x >> 30) * _MIX[1]) & _ALL
    x = ((x ^ x >> 27) * _MIX[2]) & _ALL
    return x ^ x >> 31


def _shift(x: Tensor, bits: int) -> Tensor:
    """To the right, filling with zeros; torch's >> fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
