"""Places of tokens on the image: (row, column) in patches of a grid, NaN for tokens that have none.

Axes:  t tokens, w windows, n tokens of a window, q queries, k keys.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Grid = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Places:
    queries: Tensor  # (w, q, 2)
    keys: Tensor  # (w, k, 2)
    grid: Grid


def on_grid(grid: Grid, prefix: int = 0) -> Tensor:
    """(prefix + rows * cols, 2): row-major, behind tokens without a place."""
    patches = torch.cartesian_prod(*(torch.arange(side, dtype=torch.float32) for side in grid))
    return F.pad(patches, (0, 0, prefix, 0), value=torch.nan)


def in_windows(grid: Grid, window: Grid, shift: Grid) -> Tensor:
    """(w, n, 2): places of tokens in shifted windows, rolled, padded and cut into windows as the tokens are."""
    places = on_grid(grid).unflatten(0, grid).roll((-shift[0], -shift[1]), (0, 1))
    rows, cols = (-side % step for side, step in zip(grid, window, strict=True))
    places = F.pad(places, (0, 0, 0, cols, 0, rows), value=torch.nan)
    cut = places.unflatten(1, (-1, window[1])).unflatten(0, (-1, window[0]))  # (rows of windows, n, columns of windows, n, 2)
    return cut.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def of_cells(maker: nn.Module, grid: Grid, cells: Grid) -> Tensor:
    """(rows * cols, 2): the centres of a convolution's or pooling's cells, in patches of the grid it reads."""
    return torch.cartesian_prod(*(_centres(maker, axis, grid[axis], cells[axis]) for axis in (0, 1)))


def _centres(maker: nn.Module, axis: int, patches: int, cells: int) -> Tensor:
    cell = torch.arange(cells)
    if isinstance(maker, nn.AdaptiveAvgPool2d):
        first, end = cell * patches // cells, -(-(cell + 1) * patches // cells)
        return (first + end - 1) / 2
    kernel, stride, padding = (as_pair(getattr(maker, name)) for name in ("kernel_size", "stride", "padding"))
    dilation = as_pair(getattr(maker, "dilation", 1))
    assert kernel is not None and stride is not None and dilation is not None
    reach = dilation[axis] * (kernel[axis] - 1) / 2
    # Padding may also be a word; "same" puts the centre of the first cell on the first patch.
    before = padding[axis] if padding is not None else reach if getattr(maker, "padding", "") == "same" else 0
    return cell * stride[axis] + reach - before


def as_pair(value: Any) -> Grid | None:
    """Two sides from a number or a pair of numbers; None if it is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 2 and all(type(side) is int for side in value):
        return value[0], value[1]
    return None
