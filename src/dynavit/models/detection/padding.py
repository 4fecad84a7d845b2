"""Which cells of a padded batch hold a part of their image. Images stand in the top left corner, so these are rectangles."""

import torch
from torch import Tensor

DIVISOR = 32  # sides of a batch are multiples of it, so that every grid of a pyramid divides evenly


def real_cells(sizes: Tensor, stride: int, grid: tuple[int, int]) -> Tensor:
    """(b, 2) heights and widths in pixels -> (b, rows, cols) bool, True where a cell of `stride` pixels holds a part of it."""
    rows, cols = (-(-sizes[:, at] // stride) for at in (0, 1))
    y, x = (torch.arange(n, device=sizes.device) for n in grid)
    return (y < rows[:, None])[:, :, None] & (x < cols[:, None])[:, None, :]


def padded_alone(sizes: Tensor) -> Tensor:
    """(b, 2) -> (b, 2): what each image would be padded to if it were the only one."""
    return -(-sizes // DIVISOR) * DIVISOR


def without_padding(x: Tensor, real: Tensor | None) -> Tensor:
    """(b, c, rows, cols) with 0 outside the cells (b, rows, cols) that are real; None: all are."""
    return x if real is None else torch.where(real[:, None], x, 0.0)
