"""The mean attention distance of a head, in patches (App. B.1 of DTN, arXiv 2112.02624)."""

import math

import torch
from torch import Tensor

# A head is called local if its distance is below this share of that of uniform attention.
LOCAL = 0.5


def mean_attention_distance(weights: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """The mean over queries i of sum_j A_ij |i - j|: (b, h) in float64, for each image and head.

    Class tokens and padding have no place. As queries they are left out. As keys they are taken out of each row, and the rest
    of the row is divided by its sum; a row without a rest is left out. A head without any row is NaN.

    Args:
        weights: (b, w, h, q, k), rows sum to 1; w windows of an image.
        queries: (w, q, 2), their (row, col) in patches; NaN: no place.
        keys: (w, k, 2), the same.
    """
    placed = ~queries.isnan().any(-1)
    visible = ~keys.isnan().any(-1)
    between = queries.double()[:, :, None] - keys.double()[:, None]
    distance = torch.linalg.vector_norm(between, dim=-1).nan_to_num(0.0)  # of pairs that do not count
    # Image by image: no copy of all the weights in float64.
    return torch.stack([_of_image(image.double(), distance, placed, visible) for image in weights])


def uniform_distance(grid: tuple[int, int]) -> float:
    """The mean distance of uniform attention over a grid: of all pairs of patches, each with itself too.

    >>> uniform_distance((2, 1))
    0.5
    """
    rows, cols = (_offset_shares(n) for n in grid)
    return sum(p * q * math.hypot(dy, dx) for dy, p in enumerate(rows) for dx, q in enumerate(cols))


def local_heads(distance: Tensor, uniform: float) -> Tensor:
    """(h,) -> (h,) bool: heads whose distance is below `LOCAL` of the uniform one."""
    return distance < LOCAL * uniform


def _of_image(weights: Tensor, distance: Tensor, placed: Tensor, visible: Tensor) -> Tensor:
    """(w, h, q, k), (w, q, k), (w, q), (w, k) -> (h,)"""
    total = torch.einsum("whqk,wqk->whq", weights, distance)
    mass = torch.einsum("whqk,wk->whq", weights, visible.to(weights.dtype))
    counted = placed[:, None] & (mass > 0)
    rows = torch.where(counted, total / mass, 0.0)
    return rows.sum((0, 2)) / counted.sum((0, 2))


def _offset_shares(n: int) -> list[float]:
    """Share of pairs on an axis of n places that are d = 0, 1, ... n - 1 apart."""
    return [(2 if d else 1) * (n - d) / n**2 for d in range(n)]
