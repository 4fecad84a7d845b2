"""The dispatcher op over the Triton kernels: one node for torch.compile, with its shapes, gradient and FLOPs.

An op of its own, beside `dynavit::dtn` of CPUs: it takes masks, and keeps other things for the backward pass.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..math import Layout, Operands
from . import gate, launch
from .configuration import blocks

_OPERANDS = len(Operands._fields) - 1  # without `extents`
_ARGUMENTS = (
    "Tensor x, Tensor? weight, Tensor? bias, Tensor lam_mean, Tensor lam_var, Tensor position, Tensor? mask, "
    "int[] grid, int prefix, int radius, int ddof, float eps"
)
_TENSORS = _OPERANDS + 1


def normalise_on_gpu(operands: Operands, layout: Layout, mask: Tensor | None) -> Tensor:
    """(b, prefix + t, c) -> normalised, with the affine map, in x's dtype. For calls that `supports` says yes to."""
    radius = -1 if layout.radius is None else layout.radius
    numbers = (list(layout.grid), layout.prefix, radius, layout.ddof, layout.eps)
    return torch.ops.dynavit.dtn_gpu(*operands[:_OPERANDS], mask, *numbers)[0]


def _from_arguments(arguments: tuple[Any, ...]) -> tuple[Operands, Layout, Any]:
    grid, prefix, radius, ddof, eps = arguments[_TENSORS:]
    layout = Layout(tuple(grid), prefix, None if radius < 0 else radius, ddof=ddof, eps=eps)
    return Operands(*arguments[:_OPERANDS]), layout, arguments[_OPERANDS]


torch.library.define("dynavit::dtn_gpu", f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "dynavit::dtn_gpu_backward",
    f"(Tensor grad, Tensor moments, Tensor sums, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    y, kept = launch.forward(*_from_arguments(arguments))
    return y, *kept


def _backward(grad: Tensor, moments: Tensor, sums: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return launch.backward(grad, launch.Kept(moments, sums), *_from_arguments(arguments))


for _device in ("CUDA", "CPU") if gate.INTERPRETED else ("CUDA",):
    torch.library.impl("dynavit::dtn_gpu", _device)(_forward)
    torch.library.impl("dynavit::dtn_gpu_backward", _device)(_backward)


@torch.library.register_fake("dynavit::dtn_gpu")
def _forward_fake(*arguments: Any) -> tuple[Tensor, ...]:
    operands, layout, _ = _from_arguments(arguments)
    x, tokens = operands.x, math.prod(layout.grid)
    moments, sums = x.new_empty(x.shape[0], tokens, 2), x.new_empty(x.shape[0], blocks(tokens), x.shape[-1])
    return torch.empty_like(x, memory_format=torch.contiguous_format), moments, sums


@torch.library.register_fake("dynavit::dtn_gpu_backward")
def _backward_fake(grad: Tensor, moments: Tensor, sums: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    x, weight, bias, *others = arguments[:_OPERANDS]
    channels = 0 if weight is None and bias is None else x.shape[-1]
    affine = [x.new_empty(channels, dtype=(x if part is None else part).dtype) for part in (weight, bias)]
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return grad_x, *affine, *(torch.empty_like(part, memory_format=torch.contiguous_format) for part in others)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], *output[1:])
    ctx.numbers = inputs[_TENSORS:]


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *tensors, moments, sums = ctx.saved_tensors
    grads = torch.ops.dynavit.dtn_gpu_backward(grad, moments, sums, *tensors, *ctx.numbers)
    kept = [g if need else None for g, need in zip(grads, ctx.needs_input_grad, strict=False)]
    return *kept, None, *(None,) * len(ctx.numbers)


torch.library.register_autograd("dynavit::dtn_gpu", _differentiate, setup_context=_save)


@register_flop_formula(torch.ops.dynavit.dtn_gpu)
def _forward_flops(*arguments: Any, out_shape: Any = None, **_: Any) -> int:
    """Two statistics by the dense separable formula: 2 FLOPs per multiply-add. Tensors are their shapes."""
    operands, layout, _mask = _from_arguments(arguments)
    samples, _tokens, channels = operands.x
    return 2 * 2 * samples * channels * layout._replace(radius=None).macs_per_channel


@register_flop_formula(torch.ops.dynavit.dtn_gpu_backward)
def _backward_flops(grad: Any, moments: Any, sums: Any, *arguments: Any, out_shape: Any = None, **_: Any) -> int:
    """Twice the forward pass, as for any product of two matrices and as on CPUs."""
    return 2 * _forward_flops(*arguments)
