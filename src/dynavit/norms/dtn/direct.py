"""The C kernel called directly: an ordinary call on a CPU, as small as Python allows.

The dispatcher and conversions of parameters would take longer than the work on a small grid. So where nobody watches (no
torch.compile, no counter of operations, no transform) and the parameters have types that C reads, they go to the kernel as
they are. Everything else takes the way through `op.py`, with the same numbers.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..once_differentiable import once_differentiable
from ..transforms import is_batched, needs_plain_operations
from .arguments import as_arguments
from .gpu import gate
from .math import Layout, Operands
from .native import build
from .native.kernel import Arrays, Mixing, Parameters, Prepared, backward, forward, prepare, share_of, slope_of

SECOND_DERIVATIVES = (
    "DTN's fast path has first derivatives only. For second derivatives (gradient penalties, Hessians) "
    'build the layer with backend="torch".'
)
_PLAIN = (Tensor, torch.nn.Parameter)
_REALS = {torch.float32, torch.float64}


def can_be_direct(x: Tensor, parameters: Parameters) -> bool:
    """Whether a call on x (b, t, c) may go to the C kernel without the dispatcher."""
    if torch.compiler.is_compiling() or type(x) not in _PLAIN or not x.is_cpu or x.dtype not in _REALS:
        return False
    if gate.INTERPRETED:  # the GPU kernels take tensors of the CPU then
        return False
    if torch._C._len_torch_dispatch_stack() or needs_plain_operations() or not build.native_kernel_available():
        return False
    weight, bias, *mixture = parameters
    for part in parameters:
        if part is not None and (type(part) not in _PLAIN or not part.is_cpu or not part.is_contiguous()):
            return False
    if any(part is not None and part.dtype != x.dtype for part in (weight, bias)):
        return False
    types = {part.dtype for part in mixture if part is not None}
    return len(types) < 2 and types <= _REALS


def normalise_directly(
    x: Tensor, parameters: Parameters, mixing: Mixing, layout: Layout, extents: Tensor | None = None
) -> Tensor:
    """(b, prefix + t, c) -> normalised, with the affine map. For calls that `can_be_direct` says yes to.

    Args:
        extents: (b, 2) real rows and columns of each sample, see `top_left`; what stands in the padding is never read.
    """
    x = x.contiguous()
    prepared = prepare(x, parameters, mixing, layout)
    if torch.is_grad_enabled():
        return _Direct.apply(x, *parameters, _How(prepared, extents, mixing, layout))
    return forward(x, parameters, prepared, extents, inference=True)[0]


class _How(NamedTuple):
    """What is no input of the gradient, so nobody can have changed it in between."""

    prepared: Prepared
    extents: Tensor | None
    mixing: Mixing
    layout: Layout


class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        *parameters, how = arguments
        y, moments = forward(x, parameters, how.prepared, how.extents)
        ctx.save_for_backward(x, *parameters, moments)
        ctx.how = how
        return y

    @staticmethod
    @once_differentiable(SECOND_DERIVATIVES)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters, moments = ctx.saved_tensors
        how = ctx.how
        if is_batched(grad):
            return *_watched(grad, moments, x, parameters, how), None
        return *backward(grad.contiguous(), moments, x, parameters, how.prepared, how.extents), None


def _watched(grad: Tensor, moments: Tensor, x: Tensor, parameters: Arrays, how: _How) -> tuple[Tensor | None, ...]:
    """The same through the dispatcher, which knows what to do with many cotangents at once (`is_grads_batched`)."""
    _, extents, mixing, layout = how
    weight, bias, mean, var, position = parameters
    lam_mean = share_of(mean, mixing.mean_kind, mixing.fixed_mean, x, mixing.heads)
    lam_var = share_of(var, mixing.var_kind, mixing.fixed_var, x, mixing.heads)
    places = x.new_zeros(mixing.heads, 1 + len(layout.grid)) if position is None else position
    operands = Operands(x, weight, bias, lam_mean, lam_var, places, extents)
    grad_x, grad_weight, grad_bias, grad_mean, grad_var, grad_position = torch.ops.dynavit.dtn_backward(
        grad, moments, *operands, *as_arguments(layout)
    )
    grad_mean = grad_mean * slope_of(lam_mean, mixing.mean_kind)
    grad_var = grad_var * slope_of(lam_var, mixing.var_kind)
    grads = (grad_weight, grad_bias, grad_mean, grad_var, grad_position)
    return grad_x, *(None if part is None else own for part, own in zip(parameters, grads, strict=True))
