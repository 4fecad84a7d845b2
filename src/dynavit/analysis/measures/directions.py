"""Directions of tokens before and after a norm, in one plane (Fig. 9 of DTN, arXiv 2112.02624)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDING = 1e-20  # a spread below this is that of equal unit vectors


@dataclass(frozen=True, eq=False)
class Plane:
    """Directions of n tokens before and after, projected on the two axes along which both together vary most.

    Attributes:
        before, after: (n, 2), the origin is the mean of both.
        explained_before, explained_after: (2,), the share of a set's own variance along each axis; 0 for a set without any.
        spread_before, spread_after: mean squared distance from the set's own mean: 0 where all tokens point the same way, 1
            where their directions cancel.
    """

    before: Tensor
    after: Tensor
    explained_before: Tensor
    explained_after: Tensor
    spread_before: float
    spread_after: float


def compare_directions(before: Tensor, after: Tensor) -> Plane:
    """(n, c), (n, c) tokens, c at least 2 -> their plane, in float64. The largest entry of each axis is positive."""
    before, after = (F.normalize(tokens.double(), dim=-1) for tokens in (before, after))
    both = torch.cat([before, after])
    origin = both.mean(0)
    axes = _principal_axes(both - origin)
    (explained_before, spread_before), (explained_after, spread_after) = (_variance(unit, axes) for unit in (before, after))
    return Plane(
        before=(before - origin) @ axes,
        after=(after - origin) @ axes,
        explained_before=explained_before,
        explained_after=explained_after,
        spread_before=spread_before,
        spread_after=spread_after,
    )


def _principal_axes(centred: Tensor) -> Tensor:
    """(n, c) -> (c, 2)"""
    # Of the (c, c) products, not an SVD of the tokens: there are far more tokens than channels.
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, [-1, -2]]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    return axes * largest.sign()


def _variance(unit: Tensor, axes: Tensor) -> tuple[Tensor, float]:
    own = unit - unit.mean(0)
    spread = own.square().sum(-1).mean()
    along = (own @ axes).square().mean(0)
    return torch.where(spread > ROUNDING, along / spread, 0.0), float(spread)
