"""The range of each channel as an estimate of its standard deviation. Pure functions, valid tokens only.

The largest of n normal numbers lies rho_n standard deviations above their mean (Blom's formula), so (max - min) / (2 rho_n) is
near their standard deviation, whatever n. Max and min over one image depend on that image's token count; max and min over a
batch would also grow with the batch, and one odd token in it would move them.
"""

import functools
import math
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from .distributed import max_over_processes, sum_over_processes

Extrema = Literal["image_mean", "quantile", "batch"]


def image_ranges(x: Tensor, mask: Tensor | None, q: float = 0.0) -> tuple[Tensor, Tensor]:
    """Middle and spread of each channel within an image, averaged over the images of all processes.

    The spread is half the distance of the q and 1 - q quantiles (q = 0: min and max) over its expectation for normal tokens.

    Args:
        x: (b, t, c).
        mask: (b, t), True = a real token.

    Returns:
        (2, c) middle and spread; (2, 1) the number of images behind each. One token has a middle but no spread.
    """
    if mask is None and x.shape[1] > 1 and not torch.compiler.is_compiling():
        # The same number for every image is known without asking the device.
        low, high = _extrema(x, None) if q == 0 else _quantiles(x, None, x.new_full((x.shape[0], 1), x.shape[1]), q)
        images = x.new_full((2, 1), x.shape[0])
        rows = torch.stack([high + low, (high - low) / normal_range_of(x.shape[1], q)]) / 2
        total, images = sum_over_processes(rows.sum(1), images)
        return total / images.clamp(min=1), images
    x, mask = _with_a_token(x, mask)
    count = x.new_full((x.shape[0], 1), x.shape[1]) if mask is None else mask.sum(1, keepdim=True).to(x.dtype)
    low, high = _extrema(x, mask) if q == 0 else _quantiles(x, mask, count, q)
    seen, spread_seen = count > 0, count > 1
    middle = torch.where(seen, (low + high) / 2, 0.0)
    expected = torch.where(spread_seen, normal_range(count, q), 1.0)
    spread = torch.where(spread_seen, (high - low) / (2 * expected), 0.0)
    total, images = sum_over_processes(
        torch.stack([middle.sum(0), spread.sum(0)]), torch.stack([seen.sum(0), spread_seen.sum(0)]).to(x.dtype)
    )
    return total / images.clamp(min=1), images


def batch_range(x: Tensor, mask: Tensor | None) -> Tensor:
    """(2, c): min and max of each channel over all tokens of all processes; 0 where there are none."""
    low, high = _extrema(*_with_a_token(x.flatten(0, 1)[None], None if mask is None else mask.flatten()[None]))
    outer = max_over_processes(torch.cat([-low, high]))
    return torch.where(outer.isfinite(), outer * outer.new_tensor([[-1.0], [1.0]]), 0.0)


def normal_range(count: Tensor, q: float = 0.0) -> Tensor:
    """rho: the expected 1 - q quantile of `count` standard normal numbers; 0 for a single number.

    Quantiles lie between the order statistics, whose expectations Blom's formula approximates.
    """
    count = count.clamp(min=1)
    place = (count - 1) * q
    below = place.floor()
    nearest = _normal_score(below + 1, count)
    return -torch.lerp(nearest, _normal_score(torch.minimum(below + 2, count), count), place - below)


@functools.cache
def normal_range_of(count: int, q: float = 0.0) -> float:
    """`normal_range` of a number that the host knows."""
    place = (count - 1) * q
    below = math.floor(place)
    ranks = (below + 1, min(below + 2, count))
    nearest, next_one = (NormalDist().inv_cdf((rank - 0.375) / (count + 0.25)) for rank in ranks)
    return -(nearest + (next_one - nearest) * (place - below))


def _normal_score(rank: Tensor, count: Tensor) -> Tensor:
    """Expectation of the `rank`-th smallest, from 1, of `count` standard normal numbers."""
    return torch.special.ndtri((rank - 0.375) / (count + 0.25))


def _with_a_token(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Where there is no token at all, one that does not count: nothing has no smallest number."""
    if x.shape[1]:
        return x, mask
    return x.new_zeros(x.shape[0], 1, x.shape[2]), torch.zeros(x.shape[0], 1, dtype=torch.bool, device=x.device)


def _extrema(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Min and max over the tokens, (b, c); infinite where there is no token."""
    if mask is None:
        return x.amin(1), x.amax(1)
    valid = mask[..., None]
    return torch.where(valid, x, torch.inf).amin(1), torch.where(valid, x, -torch.inf).amax(1)


def _quantiles(x: Tensor, mask: Tensor | None, count: Tensor, q: float) -> tuple[Tensor, Tensor]:
    """The q and 1 - q quantiles over the tokens, (b, c), between neighbours in order."""
    ordered = (x if mask is None else torch.where(mask[..., None], x, torch.inf)).sort(1).values  # padding comes last
    last = (count - 1).clamp(min=0)
    place = last * q
    below = place.floor()

    def at(rank: Tensor) -> Tensor:
        return ordered.gather(1, rank.long()[..., None].expand(-1, -1, x.shape[2])).squeeze(1)

    low = torch.lerp(at(below), at(torch.minimum(below + 1, last)), place - below)
    high = torch.lerp(at(last - below), at((last - below - 1).clamp(min=0)), place - below)
    return low, high
