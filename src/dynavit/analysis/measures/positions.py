"""The positional weights of DTN seen from one token, after training and before (Figs. 7 and 8 of DTN, arXiv 2112.02624)."""

import math
from typing import Any

import torch
from torch import Tensor

from ...norms import DynamicTokenNorm, ReleasedDynamicTokenNorm


def positional_matrices(norm: DynamicTokenNorm, grid: tuple[int, ...], token: int) -> Tensor:
    """P of one token as it is now: (h, *grid) in float64, each head sums to 1. The token is counted row by row, from 0."""
    if not 0 <= token < math.prod(grid):
        raise ValueError(f"there is no token {token} on a grid of {'x'.join(map(str, grid))}: it has {math.prod(grid)}, from 0")
    return norm.positional_weights(grid, token)


def initial_matrices(norm: DynamicTokenNorm, grid: tuple[int, ...], token: int, init: str, seed: int = 0) -> Tensor:
    """The same before training, of a new norm with the same options that starts with `init`: "local" or "trunc_normal"."""
    names = ["heads", "num_prefix_tokens", "ndim", "offsets", "average", "radius", "kernel"]
    if isinstance(norm, ReleasedDynamicTokenNorm):
        names = ["heads", "num_prefix_tokens", "pool"]
    options: dict[str, Any] = {"init": init} | {name: getattr(norm, name) for name in names}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the generators of devices too
        fresh = type(norm)(norm.dim, **options)
    return positional_matrices(fresh, grid, token)
