"""Means and variances over chosen axes, counting real tokens only. Pure functions."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..transforms import needs_plain_operations

Reduce = Callable[..., tuple[Tensor, ...]]


def moments(
    x: Tensor, dims: tuple[int, ...], mask: Tensor | None = None, reduce: Reduce | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of x over `dims`, which stay as axes of length 1.

    Two passes, the mean and then the centred squares: E[x^2] - E[x]^2 would cancel when the mean is large.

    Args:
        x: values; 0 wherever `mask` is False.
        mask: x's rank, broadcastable to x along `dims`; True = counts. Where nothing counts, mean and variance are 0.
        reduce: sums further, e.g. over processes: `reduce(total, count) -> (total, count)`.
    """
    total, count = x.sum(dims, keepdim=True), _count(x, dims, mask)
    if reduce is not None:
        total, count = reduce(total, count)
    mean = total / count.clamp(min=1)
    centred = x - mean
    if mask is not None:
        centred = torch.where(mask, centred, 0.0)
    # Without gradients the squares take the place of what is squared; vmap has no rule for that.
    in_place = not torch.is_grad_enabled() and not needs_plain_operations()
    squares = (centred.square_() if in_place else centred.square()).sum(dims, keepdim=True)
    if reduce is not None:
        (squares,) = reduce(squares)
    return mean, squares / count.clamp(min=1), count


def second_moment(
    x: Tensor, dims: tuple[int, ...], mask: Tensor | None = None, reduce: Reduce | None = None
) -> tuple[Tensor, Tensor]:
    """E[x^2] and the count, as in `moments`."""
    squares, count = x.square().sum(dims, keepdim=True), _count(x, dims, mask)
    if reduce is not None:
        squares, count = reduce(squares, count)
    return squares / count.clamp(min=1), count


def unbiased(variance: Tensor, count: Tensor) -> Tensor:
    """n / (n - 1) of a biased variance; one value has variance 0."""
    return variance * (count / (count - 1).clamp_(min=1))


def _count(x: Tensor, dims: tuple[int, ...], mask: Tensor | None) -> Tensor:
    """The number of values of x that are summed over `dims`, in x's dtype."""
    # Axes where the mask is only broadcast count in full.
    broadcast = 1
    for dim in dims:
        if mask is None or mask.shape[dim] == 1:
            broadcast = broadcast * x.shape[dim]
    if mask is None:
        return x.new_full((1,) * x.dim(), broadcast)
    return mask.sum(dims, keepdim=True).to(x.dtype) * broadcast
