"""One call for Dynamic Token Normalization: C on CPUs or Triton on GPUs where they can run, else the equations in torch.

    normalise_tokens(Operands(x, weight, bias, lam_mean, lam_var, position), layout, mask)

The C kernel sits behind the dispatcher op `dynavit::dtn`, so that torch.compile, FLOP counters and autograd see one node;
torch.export, torch.func, torch.jit and ONNX see the plain products instead. Both ways save only x for the backward pass.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..once_differentiable import once_differentiable
from ..transforms import needs_plain_operations
from .arguments import SCHEMA, TENSORS, as_arguments, from_arguments
from .direct import SECOND_DERIVATIVES
from .extents import top_left
from .gpu.op import normalise_on_gpu
from .gpu.supports import supports
from .math import Layout, Operands, token_norm
from .native import build, kernel
from .native.kernel import Mixing, Parameters, has_native_form


def normalise_tokens(operands: Operands, layout: Layout, mask: Tensor | None = None, backend: str = "auto") -> Tensor:
    """(b, prefix + t, c) -> weight * (x - mu) / sqrt(sigma^2 + eps) + bias in x's dtype."""
    plain = backend == "torch" or needs_plain_operations()
    if not plain and supports(operands, layout)[0]:
        return normalise_on_gpu(operands, layout, mask)
    native = not plain and _has_native_form(operands, layout) and build.native_kernel_available()
    extents = top_left(mask, layout) if native and mask is not None else None
    if extents is not None:
        operands = operands._replace(extents=extents)
    if native and (mask is None or extents is not None):
        arguments = (*operands, *as_arguments(layout))
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return torch.ops.dynavit.dtn(*arguments)[0]
        return _Native.apply(*arguments)
    if plain or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return _plain(operands, layout, mask)
    return _Recomputed.apply(*operands, layout, mask)


def _has_native_form(operands: Operands, layout: Layout) -> bool:
    return operands.position is not None and has_native_form(layout) and operands.x.is_cpu


# ---- plain torch ----


def _plain(operands: Operands, layout: Layout, mask: Tensor | None) -> Tensor:
    x, weight, bias, lam_mean, lam_var, position, _ = operands
    # Autocast would take the products to half precision; statistics stay in x's.
    with _full_precision(x.device):
        y = token_norm(x, lam_mean, lam_var, position, layout, mask)
        if weight is not None:
            y = y * weight.to(y.dtype)
        return y if bias is None else y + bias.to(y.dtype)


def _full_precision(device: torch.device) -> AbstractContextManager[Any]:
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


class _Recomputed(torch.autograd.Function):
    """`_plain`, but only its inputs are kept for the backward pass, which computes the statistics again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, layout, mask = arguments
        ctx.save_for_backward(*tensors)
        ctx.rest = layout, mask
        return _plain(Operands(*tensors), layout, mask)

    @staticmethod
    @once_differentiable(SECOND_DERIVATIVES)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors: list[Any] = [
            tensor if tensor is None else tensor.detach().requires_grad_(need)
            for tensor, need in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
        with torch.enable_grad(), _full_precision(grad.device):
            y = _plain(Operands(*tensors), *ctx.rest)
            grads = iter(torch.autograd.grad(y, wanted, grad, allow_unused=True))
        return *(next(grads) if tensor is not None and tensor.requires_grad else None for tensor in tensors), None, None


# ---- the dispatcher op over the C kernel ----

torch.library.define("dynavit::dtn", f"({SCHEMA}) -> (Tensor, Tensor)")
torch.library.define(
    "dynavit::dtn_backward",
    f"(Tensor grad, Tensor moments, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl("dynavit::dtn", "CPU")
def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    operands, layout = from_arguments(arguments)
    x, parameters, mixing = _as_arrays(operands)
    y, moments = kernel.forward(x, parameters, kernel.prepare(x, parameters, mixing, layout), operands.extents)
    assert moments is not None
    return y, moments


@torch.library.impl("dynavit::dtn_backward", "CPU")
def _backward(grad: Tensor, moments: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    operands, layout = from_arguments(arguments)
    x, parameters, mixing = _as_arrays(operands)
    grad = grad.to(x.dtype).contiguous()
    prepared = kernel.prepare(x, parameters, mixing, layout)
    grads = kernel.backward(grad, moments, x, parameters, prepared, operands.extents)
    made = (x.new_zeros(x.shape[-1]) if part is None else part for part in grads)
    types = ((x if like is None else like).dtype for like in operands)
    return tuple(part.to(dtype) for part, dtype in zip(made, types, strict=False))


def _as_arrays(operands: Operands) -> tuple[Tensor, Parameters, Mixing]:
    """Contiguous, in types that C reads."""
    x, weight, bias, *numbers = operands[:-1]
    single = all(part is not None and part.dtype == torch.float32 for part in numbers)
    types = (*(x.dtype,) * 2, *(torch.float32 if single else torch.float64,) * 3)
    arrays = (
        None if part is None else part.to(dtype).contiguous()
        for part, dtype in zip((weight, bias, *numbers), types, strict=True)
    )
    return x.contiguous(), Parameters(*arrays), Mixing(operands.lam_mean.shape[0])


@torch.library.register_fake("dynavit::dtn")
def _forward_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    moments = x.new_empty(*x.shape[:2], 2, dtype=torch.float64)
    return torch.empty_like(x, memory_format=torch.contiguous_format), moments


@torch.library.register_fake("dynavit::dtn_backward")
def _backward_fake(grad: Tensor, moments: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    x, weight, bias, *others = arguments[: TENSORS - 1]  # all but `extents`
    affine = [x.new_empty(x.shape[-1], dtype=(x if part is None else part).dtype) for part in (weight, bias)]
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return grad_x, *affine, *(torch.empty_like(part) for part in others)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:TENSORS], output[1])
    ctx.layout = inputs[TENSORS:]


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, moments = ctx.saved_tensors
    grads = torch.ops.dynavit.dtn_backward(grad, moments, *tensors, *ctx.layout)
    kept = [g if need else None for g, need in zip(grads, ctx.needs_input_grad, strict=False)]
    return *kept, None, *(None,) * len(ctx.layout)


class _Native(torch.autograd.Function):
    """The op with its gradient for eager mode: as `register_autograd`, without its 0.05 ms of bookkeeping per call."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        output = torch.ops.dynavit.dtn(*arguments)
        _save(ctx, arguments, output)
        return output[0]

    @staticmethod
    @once_differentiable(SECOND_DERIVATIVES)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, grad, None)


def _refuse(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(SECOND_DERIVATIVES)


torch.library.register_autograd("dynavit::dtn", _differentiate, setup_context=_save)
torch.library.register_autograd("dynavit::dtn_backward", _refuse)
torch.library.register_autograd("dynavit::dtn_gpu_backward", _refuse)


def _backward_of_each(
    backward: Any, info: Any, in_dims: tuple[Any, ...], *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Several cotangents of one forward call, one after the other."""

    def of(index: int) -> tuple[Tensor, ...]:
        own = (part.select(dim, index) if isinstance(dim, int) else part for part, dim in zip(arguments, in_dims, strict=True))
        grads: tuple[Tensor, ...] = backward(*own)
        return grads

    grads = [torch.stack(parts) for parts in zip(*(of(index) for index in range(info.batch_size)), strict=True)]
    return tuple(grads), (0,) * len(grads)


torch.library.register_vmap("dynavit::dtn_backward", partial(_backward_of_each, torch.ops.dynavit.dtn_backward))
torch.library.register_vmap("dynavit::dtn_gpu_backward", partial(_backward_of_each, torch.ops.dynavit.dtn_gpu_backward))


@register_flop_formula(torch.ops.dynavit.dtn)
def _forward_flops(*arguments: Any, out_shape: Any = None, **_: Any) -> int:
    """Two statistics by the dense separable formula, whatever was cut: 2 FLOPs per multiply-add. Tensors are their shapes."""
    operands, layout = from_arguments(arguments)
    dense = layout if layout.banded else layout._replace(radius=None)
    samples, _tokens, channels = operands.x
    return 2 * 2 * samples * channels * dense.macs_per_channel


@register_flop_formula(torch.ops.dynavit.dtn_backward)
def _backward_flops(grad: Any, moments: Any, *arguments: Any, out_shape: Any = None, **_: Any) -> int:
    """Transposed kernels and kernel gradients: twice the forward pass, as for any product of two matrices."""
    return 2 * _forward_flops(*arguments)
