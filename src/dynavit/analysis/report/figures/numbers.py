"""Numbers from files, where null stands for what is not finite."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def numbers(values: Any) -> Numbers:
    """NaN for null."""
    return np.array(values, dtype=np.float64)


def finite(arrays: Iterable[Numbers]) -> Numbers:
    """All finite numbers of some arrays, in a row."""
    flat = np.concatenate([np.empty(0), *(np.ravel(array) for array in arrays)])
    return flat[np.isfinite(flat)]


def relative(values: Any) -> Numbers:
    """Each row divided by its mean; NaN where that is 0.

    >>> relative([[1.0, 3.0], [0.0, 0.0], [2.0, None]]).tolist()
    [[0.5, 1.5], [nan, nan], [1.0, nan]]
    """
    rows = numbers(values)
    sums, counts = np.nansum(rows, -1, keepdims=True), np.isfinite(rows).sum(-1, keepdims=True)
    return np.divide(rows * counts, sums, out=np.full_like(rows, np.nan), where=sums > 0)


def on_grid(values: Any, grid: Sequence[int]) -> Numbers:
    """(h, r * c) -> (h, r, c)."""
    return numbers(values).reshape(-1, *grid)
