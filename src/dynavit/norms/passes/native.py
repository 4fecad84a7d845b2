"""Calls of the C code (passes.h) through ctypes. Tensors are of one dtype, float32 or float64, and lie in one piece."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from .build import load_passes

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_COUNT, _REAL, _ARRAY = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_ARGUMENTS: dict[str, list[Any]] = {  # after the sizes and the threads
    "batch_moments": [_ARRAY, _COUNT, _REAL, _COUNT, _REAL, _ARRAY],
    "standardised_forward": [_COUNT, *[_REAL] * 3, *[_ARRAY] * 8],
    "standardised_backward": [_COUNT, *[_REAL] * 2, *[_ARRAY] * 12],
    "projected_forward": [_REAL, *[_ARRAY] * 8],
    "projected_backward": [_ARRAY] * 12,
    "switched_forward": [_REAL, *[_ARRAY] * 9],
    "switched_backward": [_REAL, *[_ARRAY] * 13],
}
_OF_CHANNELS: dict[str, list[Any]] = {  # after the number of channels
    "move_running": [_REAL, _REAL, *[_ARRAY] * 3],
    "merge_running": [_REAL, *[_ARRAY] * 3],
    "feature_map": [_COUNT, _ARRAY, _COUNT, *[_REAL] * 3, *[_ARRAY] * 12],
    "feature_map_backward": [_COUNT, _COUNT, _REAL, *[_ARRAY] * 11],
    "feature_move": [_COUNT, _ARRAY, *[_REAL] * 4, _COUNT, *[_ARRAY] * 3],
    "line_move": [_REAL, *[_ARRAY] * 3],
}


def batch_moments(x: Tensor, range_unit: float | None = None, line_eps: float | None = None) -> Tensor:
    """(2, c) mean and biased variance of each channel over all tokens, and more rows that are asked for, in this order.

    Args:
        range_unit: two rows, means over the samples of (max + min) / 2 and of (max - min) * range_unit.
        line_eps: three rows, mean and variance of LN(x) with this eps and without gain and bias, and its covariance with x.
    """
    ranges, line = range_unit is not None, line_eps is not None
    rows = x.new_empty(2 + 2 * ranges + 3 * line, x.shape[2])
    run("batch_moments", x, x, ranges, range_unit or 0.0, line, line_eps or 0.0, rows)
    return rows


def token_moments_like(x: Tensor) -> Tensor:
    """Memory for the mean and the inverse deviation of each token."""
    return x.new_empty(x.shape[0], x.shape[1], 2)


def run(entry: str, x: Tensor, *arguments: Any) -> None:
    """Call an entry on tokens x (b, t, c), which give the sizes; what it writes is among the arguments."""
    assert x.numel() and x.is_contiguous(), "C takes tokens that lie in one piece, and at least one"
    plain = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
    if _function(entry, x.dtype)(*x.shape, torch.get_num_threads(), *plain):
        raise MemoryError(f"{entry}: C found no memory for its work on tokens of shape {tuple(x.shape)}")


def run_on_channels(entry: str, like: Tensor, *arguments: Any) -> int:
    """Call an entry that knows no tokens, for channels like those of `like` (..., c): 0, or its own word for what it found."""
    plain = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
    answer: int = _function(entry, like.dtype)(like.shape[-1], *plain)
    if answer == 1:
        raise MemoryError(f"{entry}: C found no memory for its work on {like.shape[-1]} channels")
    return answer


@functools.cache
def _function(entry: str, dtype: torch.dtype) -> "ctypes._NamedFuncPointer":
    library = load_passes()
    assert library is not None, "this is only called where C was built"
    function = getattr(library, f"{entry}_{_SUFFIX[dtype]}")
    function.argtypes = [_COUNT, *_OF_CHANNELS[entry]] if entry in _OF_CHANNELS else [*[_COUNT] * 4, *_ARGUMENTS[entry]]
    return function
