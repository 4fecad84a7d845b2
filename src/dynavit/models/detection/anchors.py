"""Anchors: boxes of a few sizes and shapes at every cell of a feature map, which predictions are offsets from."""

from collections.abc import Sequence

import torch
from torch import Tensor

RATIOS = (0.5, 1.0, 2.0)  # height / width
THIRDS = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))  # of an octave


def base_anchors(side: float, scales: Sequence[float] = (1.0,), ratios: Sequence[float] = RATIOS) -> Tensor:
    """(ratios * scales, 4) around (0, 0), of area (side * scale)^2; scales vary first."""
    root = torch.tensor(ratios, dtype=torch.float64).sqrt()[:, None]
    sides = side * torch.tensor(scales, dtype=torch.float64)[None]
    half = torch.stack([sides / root, sides * root], -1).reshape(-1, 2) / 2
    return torch.cat([-half, half], 1).float()


def grid_anchors(base: Tensor, grid: tuple[int, int], stride: int) -> Tensor:
    """(n, 4) -> (rows * cols * n, 4), cell by cell, row-major. The centre of cell (i, j) is (j * stride, i * stride)."""
    y, x = (torch.arange(n, device=base.device, dtype=base.dtype) * stride for n in grid)
    centres = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flip(-1).reshape(-1, 1, 2)
    return (base + centres.repeat(1, 1, 2)).reshape(-1, 4)
