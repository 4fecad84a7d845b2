"""Tokens that are cut into square blocks of the image, (b, m, n, c), back on their grid and cut again.

    blocks     m blocks of n cells each: NesT, the windows of MaxViT
    strided    the same cell of all n blocks, for m cells: the grids of MaxViT

Blocks lie on the image row by row, and cells in their block likewise. The side of a block is the root of its number of cells;
the grid comes with the call. A norm of neighbours needs the image's neighbours, not those of a block.
"""

import math

from torch import Tensor

from .grid import Grid
from .plan import AxisOrder

BLOCKED: tuple[AxisOrder, ...] = ("blocks", "strided")


class CutGrid(tuple[int, int]):
    """A grid (rows, cols) that remembers the side of the blocks its tokens came in."""

    side: int

    def __new__(cls, grid: Grid, side: int) -> "CutGrid":
        made = super().__new__(cls, grid)
        made.side = side
        return made


def side_of(layout: AxisOrder, shape: tuple[int, ...], grid: Grid) -> int | None:
    """The side of the blocks, if (b, m, n, c) can be this grid, cut like this."""
    cells = shape[2] if layout == "blocks" else shape[1]
    side = math.isqrt(cells)
    fit = side * side == cells and shape[1] * shape[2] == math.prod(grid) and grid[0] % side == 0 and grid[1] % side == 0
    return side if fit else None


def on_grid(x: Tensor, layout: AxisOrder, grid: Grid, side: int) -> Tensor:
    """(b, m, n, c) -> (b, rows, cols, c)"""
    blocks = x if layout == "blocks" else x.transpose(1, 2)  # (b, blocks, cells, c)
    shape = (grid[0] // side, grid[1] // side)
    return blocks.unflatten(2, (side, side)).unflatten(1, shape).transpose(2, 3).flatten(3, 4).flatten(1, 2)


def cut(y: Tensor, layout: AxisOrder, side: int) -> Tensor:
    """(b, rows, cols, c) -> (b, m, n, c)"""
    blocks = y.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return blocks if layout == "blocks" else blocks.transpose(1, 2)
