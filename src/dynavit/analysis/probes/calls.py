"""Calls of norms and attentions, as `observe` hands them to its callbacks.

Axes:  b images, t tokens, c channels, w windows of an image, h heads, q queries, k keys.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from .sites import Site


@dataclass(frozen=True, eq=False)
class NormCall:
    """One call of one norm."""

    path: str
    norm: nn.Module
    heads: int
    site: Site
    before: Tensor  # (b, t, c), prefix tokens first
    after: Tensor  # (b, t, c)
    grid: tuple[int, int]
    prefix: int  # tokens in front that do not lie on the grid


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One softmax of one attention."""

    path: str
    weights: Tensor  # (b, w, h, q, k), at least float32; rows sum to 1; w = 1 where there are no windows
    queries: Tensor  # (w, q, 2): row and column in patches of `grid`; NaN: not on the image (class token, padding)
    keys: Tensor  # (w, k, 2), in the same patches
    grid: tuple[int, int]  # of the queries
