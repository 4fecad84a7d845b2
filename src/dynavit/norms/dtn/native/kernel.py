"""Calls of the C kernel: tensors in, tensors out, without autograd.

Parameters go in as the layer has them, and their gradients come back in the same form. A call on a small grid takes a few
microseconds of arithmetic, so nothing tensor-like is made here but the results.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import kernel_cut
from ..math import Layout
from .build import load_kernel

SHARE, LOGIT, FIXED = range(3)  # what a number means that stands for lambda: `Kind` of call.h
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


class Parameters(NamedTuple):
    """Arrays of a layer, contiguous: weight and bias (c) in x's dtype, the others in one of float32 and float64."""

    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None  # (h) what stands for lambda; None: fixed
    var: Tensor | None
    position: Tensor | None  # (h, 2 or 3); None: zeros


Arrays = Sequence[Tensor | None]  # `Parameters`, or the same in that order


class Mixing(NamedTuple):
    """How the parameters of a layer are meant, the same in every call."""

    heads: int
    mean_kind: int = SHARE
    var_kind: int = SHARE
    fixed_mean: float = 0.0
    fixed_var: float = 0.0


def share_of(number: Tensor | None, kind: int, fixed: float, like: Tensor, heads: int) -> Tensor:
    """(h,) the lambda that C takes a parameter for, as a tensor."""
    if number is None:
        return like.new_full((heads,), fixed)
    return number.sigmoid() if kind == LOGIT else number.clamp(0, 1)


def slope_of(share: Tensor, kind: int) -> Tensor | float:
    """Of lambda by its parameter, as C returns it; that of a share passes its ends."""
    return share * (1 - share) if kind == LOGIT else 1.0


class _Call(ctypes.Structure):
    """`Call` of call.h: the same fields in the same order."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("samples", "prefix", "rows", "cols", "channels", "heads", "pool")),
        *(
            (name, ctypes.c_int64)
            for name in ("radius", "ddof", "position_numbers", "parameter_bytes", "mean_kind", "var_kind")
        ),
        *((name, ctypes.c_double) for name in ("fixed_mean", "fixed_var", "eps", "cut")),
    )


class Prepared(NamedTuple):
    """A call of given sizes and options: what can be made once and used for every call like it, and for its gradient."""

    call: object  # a pointer to a `_Call`, which no call changes
    forward: Callable[..., int]
    backward: Callable[..., int]


def prepare(x: Tensor, parameters: Parameters, mixing: Mixing, layout: Layout) -> Prepared:
    """For tokens x (b, prefix + t, c), contiguous."""
    _, _, mean, var, position = parameters
    numbers = mean if mean is not None else var if var is not None else position
    dtype, shape = x.dtype, x.shape
    return _prepared(load_kernel(), layout, mixing, shape, dtype, (dtype if numbers is None else numbers.dtype).itemsize)


@functools.lru_cache(1024)
def _prepared(
    library: ctypes.CDLL | None, layout: Layout, mixing: Mixing, shape: torch.Size, dtype: torch.dtype, parameter_bytes: int
) -> Prepared:
    assert library is not None, "this is only called where the C kernel was built"
    rows, cols = _rows_and_cols(layout)
    samples, _, channels = shape
    radius = -1 if layout.radius is None else layout.radius
    sizes = (samples, layout.prefix, rows, cols, channels, mixing.heads, layout.pool)
    options = (radius, layout.ddof, 1 + len(layout.grid), parameter_bytes, *mixing[1:], layout.eps, kernel_cut(dtype))
    functions = [getattr(library, f"dtn_{entry}_{_SUFFIX[dtype]}") for entry in ("forward", "backward")]
    for function, pointers in zip(functions, (9, 15), strict=True):
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * pointers]
    return Prepared(ctypes.byref(_Call(*sizes, *options)), *functions)


def forward(
    x: Tensor,
    parameters: Arrays,
    prepared: Prepared,
    extents: Tensor | None = None,
    *,
    inference: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """y like x, and the intra-token mean and variance of each token (b, prefix + t, 2) in float64, for `backward`.

    Args:
        x: (b, prefix + t, c), contiguous.
        extents: (b, 2) real rows and columns of each sample, int64; the rest is padding, where y is 0.
        inference: nobody will differentiate: the second result is None.
    """
    y = torch.empty_like(x)
    moments = None if inference else torch.empty((*x.shape[:2], 2), dtype=torch.float64)
    _run(prepared.forward, prepared.call, x, (x, *parameters, extents, moments, y))
    return y, moments


def backward(
    grad: Tensor,
    moments: Tensor,
    x: Tensor,
    parameters: Arrays,
    prepared: Prepared,
    extents: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients of x and of each of the parameters that is not None, like them."""
    # Each in memory of its own: gradients must not be views of one another.
    grads = [None if part is None else torch.empty_like(part) for part in (x, *parameters)]
    if x.numel() == 0:
        return tuple(None if part is None else part.zero_() for part in grads)
    _run(prepared.backward, prepared.call, x, (x, *parameters, extents, moments, grad, *grads))
    return tuple(grads)


def _run(function: Callable[..., int], call: object, x: Tensor, arrays: tuple[Tensor | None, ...]) -> None:
    if x.numel() == 0:
        return
    if function(call, torch.get_num_threads(), *[None if part is None else part.data_ptr() for part in arrays]):
        raise MemoryError(f"DTN's C kernel found no memory for its work on tokens of shape {tuple(x.shape)}")


def has_native_form(layout: Layout) -> bool:
    """Whether the C kernel can compute calls of this layout."""
    return layout.pool == 1 or layout.keeps_spread


def extents_of(mask: Tensor, layout: Layout) -> Tensor | None:
    """(b, prefix + t) -> (b, 2) real rows and columns, if they fill the top-left corner of each sample's grid."""
    extents = torch.empty((mask.shape[0], 2), dtype=torch.int64)
    library, mask = load_kernel(), mask.contiguous()
    assert library is not None, "this is only called where the C kernel was built"
    sizes = (mask.shape[0], layout.prefix, *_rows_and_cols(layout))
    function = library.dtn_extents
    if function.argtypes is None:
        function.argtypes = [*[ctypes.c_int64] * 4, ctypes.c_void_p, ctypes.c_void_p]
    return extents if function(*sizes, mask.data_ptr(), extents.data_ptr()) else None


def _rows_and_cols(layout: Layout) -> tuple[int, int]:
    """Sequences run along the rows."""
    return (layout.grid[0], layout.grid[1]) if len(layout.grid) == 2 else (layout.grid[0], 1)
