"""Shares of LayerNorm, of InstanceNorm, and of an InstanceNorm over neighbours in a trained DTN."""

import math
from typing import Any

import torch
from torch import Tensor

from ...norms import DynamicTokenNorm
from ...norms.dtn.kernels import grid_kernels

NAMES = {"ln": "LN", "in": "IN", "local": "local IN"}


@torch.no_grad()
def dtn_nature(norm: DynamicTokenNorm, grid: tuple[int, ...]) -> dict[str, Any]:
    """{"mean": shares, "variance": shares, "became": a name}, shares = {"ln", "in", "local"}, averaged over heads, sum 1.

    A head gives lambda to LN. The rest is divided by the width of its positional weights P: 1 where P is uniform, which is IN,
    0 where P is one token. Width is (n - 1) / (T - 1), n the number of tokens that P effectively sees, see `seen_tokens`.
    `became` is the largest share of the mean and the variance together.
    """
    tokens = math.prod(grid)
    seen = seen_tokens(norm, grid)
    width = (seen - 1) / (tokens - 1) if tokens > 1 else torch.ones_like(seen)
    shares = {
        moment: {
            "ln": float(lam.mean()),
            "in": float(((1 - lam) * width).mean()),
            "local": float(((1 - lam) * (1 - width)).mean()),
        }
        for moment, lam in zip(("mean", "variance"), norm.mixing_weights(seen), strict=True)
    }
    together = {kind: shares["mean"][kind] + shares["variance"][kind] for kind in NAMES}
    return {**shares, "became": NAMES[max(together, key=together.__getitem__)]}


@torch.no_grad()
def seen_tokens(norm: DynamicTokenNorm, grid: tuple[int, ...]) -> Tensor:
    """(h,) in float64: exp of the entropy of P's rows, averaged over tokens: T where P is uniform, 1 where it is one token."""
    tokens = math.prod(grid)
    device = next((p.device for p in norm.parameters()), torch.device("cpu"))
    if norm.average == "uniform":
        return torch.full((norm.heads,), float(tokens), dtype=torch.float64, device=device)
    layout = norm.layout(tokens + norm.num_prefix_tokens, grid if norm.ndim == 2 else None)
    cells = tuple(n // layout.pool for n in layout.grid)
    position = torch.zeros(norm.heads, 1 + norm.ndim, device=device) if norm.position is None else norm.position
    # P is a product of kernels: entropies of its factors add, so their exponentials multiply, and so do the means of these.
    seen = torch.full((norm.heads,), float(layout.pool**2), dtype=torch.float64, device=device)
    for kernel in grid_kernels(position, cells, layout.radius):
        seen = seen * torch.special.entr(kernel).sum(-1).exp().mean(-1)
    return seen
