"""Calls of the C kernel: tensors in, tensors out, without autograd."""

import ctypes

import torch
from torch import Tensor

from ..kernels import kernel_cut
from ..math import Layout, Operands
from .build import load_kernel

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


class _Input(ctypes.Structure):
    """`Input` of job.h: the same fields in the same order."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("samples", "prefix", "rows", "cols", "channels", "heads")),
        *((name, ctypes.c_int64) for name in ("radius", "ddof", "threads")),
        *((name, ctypes.c_double) for name in ("eps", "cut")),
        *((name, ctypes.c_void_p) for name in Operands._fields),
    )


def forward(operands: Operands, layout: Layout) -> tuple[Tensor, Tensor]:
    """y like x, and the intra-token mean and variance of each token (b, prefix + t, 2) in float64, for `backward`."""
    operands = _as_arrays(operands)
    x = operands.x
    y = torch.empty_like(x) if operands.lengths is None else torch.zeros_like(x)  # padding is not written
    moments = torch.empty(*x.shape[:2], 2, dtype=torch.float64)
    _call("dtn_forward", operands, layout, moments, y)
    return y, moments


def backward(grad: Tensor, moments: Tensor, operands: Operands, layout: Layout) -> tuple[Tensor, ...]:
    """The gradients of all operands but `lengths`, each in its operand's dtype. Where weight or bias is None, in x's."""
    arrays = _as_arrays(operands)
    x, heads = arrays.x, arrays.lam_mean.shape[0]
    grad_x = torch.empty_like(x)
    sums = torch.zeros(2 * x.shape[-1] + 5 * heads, dtype=torch.float64)
    *small, grad_position = sums.split([x.shape[-1], x.shape[-1], heads, heads, 3 * heads])
    _call("dtn_backward", arrays, layout, moments, grad.to(x.dtype).contiguous(), grad_x, *small, grad_position)
    grad_position = grad_position.view(heads, 3)
    if len(layout.grid) == 1:  # a sequence runs along the rows: [d^2, dy]
        grad_position = grad_position[:, ::2]
    # Each gradient is cast to its own fresh tensor: the pieces of `sums` must not leave as views of one another.
    types = ((x if like is None else like).dtype for like in operands[1:6])
    return grad_x, *(part.to(dtype, copy=True) for part, dtype in zip((*small, grad_position), types, strict=True))


def _as_arrays(operands: Operands) -> Operands:
    """Contiguous, in the types that C expects; `position` (h, 3) also for sequences."""
    position, real = operands.position, operands.x.dtype
    assert position is not None
    if position.shape[1] == 2:
        position = torch.stack([position[:, 0], torch.zeros_like(position[:, 0]), position[:, 1]], 1)
        operands = operands._replace(position=position)
    types = (real, real, real, torch.float64, torch.float64, torch.float64, torch.int64)
    arrays = (None if part is None else part.to(dtype).contiguous() for part, dtype in zip(operands, types, strict=True))
    return Operands(*arrays)  # type: ignore[arg-type]  # None stays where it was


def _call(entry: str, operands: Operands, layout: Layout, *arrays: Tensor) -> None:
    x = operands.x
    if x.numel() == 0:
        return
    library = load_kernel()
    assert library is not None, "the op is only called where the C kernel was built"
    rows, cols = layout.grid if len(layout.grid) == 2 else (layout.grid[0], 1)
    radius = -1 if layout.radius is None else layout.radius
    sizes = (x.shape[0], layout.prefix, rows, cols, x.shape[2], operands.lam_mean.shape[0])
    options = (radius, layout.ddof, torch.get_num_threads(), layout.eps, kernel_cut(x.dtype))
    call = _Input(*sizes, *options, *[None if part is None else part.data_ptr() for part in operands])
    function = getattr(library, f"{entry}_{_SUFFIX[x.dtype]}")
    failed = function(ctypes.byref(call), *[ctypes.c_void_p(part.data_ptr()) for part in arrays])
    if failed:
        raise MemoryError(f"DTN's C kernel found no memory for its work on tokens of shape {tuple(x.shape)}")
