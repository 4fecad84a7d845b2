"""Masks of boxes, brought back into their image."""

import torch
from torch import Tensor


def paste_mask(chances: Tensor, box: Tensor, size: tuple[int, int], threshold: float = 0.5) -> Tensor:
    """(n, n) probabilities over a box (4,) -> (height, width) bool.

    The centre of pixel x lies at (x + 1/2 - x1) / width of the box; values between those of the n cells are bilinear, 0 beyond.
    """
    x1, y1, x2, y2 = box.double()
    dtype = torch.promote_types(chances.dtype, torch.float32)
    rows, cols = (
        _hats(start, end, length, count).to(dtype)
        for start, end, length, count in ((y1, y2, size[0], chances.shape[0]), (x1, x2, size[1], chances.shape[1]))
    )
    return rows @ chances.to(dtype) @ cols.T >= threshold


def _hats(start: Tensor, end: Tensor, length: int, count: int) -> Tensor:
    """(length, count): the weight of each cell at each pixel."""
    pixels = torch.arange(length, device=start.device, dtype=torch.float64) + 0.5
    at = (pixels - start) / (end - start).clamp_min(1e-6) * count - 0.5
    cells = torch.arange(count, device=start.device, dtype=torch.float64)
    return (1 - (at[:, None] - cells).abs()).clamp_min(0)
