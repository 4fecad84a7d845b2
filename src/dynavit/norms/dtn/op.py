"""One call for Dynamic Token Normalization: the C kernel where it can run, else the equations in torch.

    normalise_tokens(Operands(x, weight, bias, lam_mean, lam_var, position), layout, mask)

The C kernel sits behind the dispatcher op `dynavit::dtn`, so that torch.compile, FLOP counters and autograd see one node;
torch.export, torch.func, torch.jit and ONNX see the plain products instead. Both ways save only x for the backward pass.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..once_differentiable import once_differentiable
from ..transforms import needs_plain_operations
from .math import Layout, Operands, token_norm
from .native import kernel
from .native.build import load_kernel

_ONCE = (
    "DTN's fast path has first derivatives only. For second derivatives (gradient penalties, Hessians) "
    'build the layer with backend="torch".'
)


def normalise_tokens(operands: Operands, layout: Layout, mask: Tensor | None = None, backend: str = "auto") -> Tensor:
    """(b, prefix + t, c) -> weight * (x - mu) / sqrt(sigma^2 + eps) + bias in x's dtype."""
    plain = backend == "torch" or needs_plain_operations()
    native = not plain and _has_native_form(operands, layout) and native_kernel_available()
    lengths = _lengths(mask, layout) if native and mask is not None else None
    if lengths is not None:
        operands = operands._replace(lengths=lengths)
    if native and (mask is None or lengths is not None):
        arguments = (*operands, *_as_arguments(layout))
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return torch.ops.dynavit.dtn(*arguments)[0]
        return _Native.apply(*arguments)
    if plain or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return _plain(operands, layout, mask)
    return _Recomputed.apply(*operands, layout, mask)


def _has_native_form(operands: Operands, layout: Layout) -> bool:
    return operands.position is not None and layout.pool == 1 and operands.x.is_cpu


@torch.compiler.assume_constant_result
def native_kernel_available() -> bool:
    return load_kernel() is not None


def _lengths(mask: Tensor, layout: Layout) -> Tensor | None:
    """(b,) real tokens of each sample if this is a sequence padded on its right, the only masks that the C kernel takes.

    This reads the mask's values, which costs nothing on a CPU; it is called nowhere else.
    """
    if len(layout.grid) != 1 or torch.compiler.is_compiling() or type(mask) is not Tensor:  # a fake tensor has no values
        return None
    patches = mask[:, layout.prefix :]
    plain = bool(mask[:, : layout.prefix].all()) and not bool((patches[:, 1:] & ~patches[:, :-1]).any())
    return patches.sum(1) if plain else None


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
    @once_differentiable(_ONCE)
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

_TENSORS = len(Operands._fields)


def _schema() -> str:
    """Arguments of both ops: the fields of `Operands`, then the numbers of `_as_arguments`."""
    kinds = {name: "Tensor" if kind is Tensor else "Tensor?" for name, kind in get_type_hints(Operands).items()}
    tensors = ", ".join(f"{kind} {name}" for name, kind in kinds.items())
    return f"{tensors}, int[] grid, int prefix, int radius, bool banded, int ddof, float eps"


def _as_arguments(layout: Layout) -> tuple[Any, ...]:
    radius = -1 if layout.radius is None else layout.radius
    return list(layout.grid), layout.prefix, radius, layout.banded, layout.ddof, layout.eps


def _from_arguments(arguments: tuple[Any, ...]) -> tuple[Operands, Layout]:
    grid, prefix, radius, banded, ddof, eps = arguments[_TENSORS:]
    layout = Layout(tuple(grid), prefix, None if radius < 0 else radius, banded, ddof=ddof, eps=eps)
    return Operands(*arguments[:_TENSORS]), layout


torch.library.define("dynavit::dtn", f"({_schema()}) -> (Tensor, Tensor)")
torch.library.define(
    "dynavit::dtn_backward",
    f"(Tensor grad, Tensor moments, {_schema()}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl("dynavit::dtn", "CPU")
def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    return kernel.forward(*_from_arguments(arguments))


@torch.library.impl("dynavit::dtn_backward", "CPU")
def _backward(grad: Tensor, moments: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return kernel.backward(grad, moments, *_from_arguments(arguments))


@torch.library.register_fake("dynavit::dtn")
def _forward_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    moments = x.new_empty(*x.shape[:2], 2, dtype=torch.float64)
    return torch.empty_like(x, memory_format=torch.contiguous_format), moments


@torch.library.register_fake("dynavit::dtn_backward")
def _backward_fake(grad: Tensor, moments: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    x, weight, bias, *others = arguments[: _TENSORS - 1]  # all but `lengths`
    affine = [x.new_empty(x.shape[-1], dtype=(x if part is None else part).dtype) for part in (weight, bias)]
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return grad_x, *affine, *(torch.empty_like(part) for part in others)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], output[1])
    ctx.layout = inputs[_TENSORS:]


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
    @once_differentiable(_ONCE)
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, grad, None)


def _refuse(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(_ONCE)


torch.library.register_autograd("dynavit::dtn", _differentiate, setup_context=_save)
torch.library.register_autograd("dynavit::dtn_backward", _refuse)


@torch.library.register_vmap("dynavit::dtn_backward")
def _backward_of_each(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Several cotangents of one forward call, one after the other."""

    def of(index: int) -> tuple[Tensor, ...]:
        own = (part.select(dim, index) if isinstance(dim, int) else part for part, dim in zip(arguments, in_dims, strict=True))
        grads: tuple[Tensor, ...] = torch.ops.dynavit.dtn_backward(*own)
        return grads

    grads = [torch.stack(parts) for parts in zip(*(of(index) for index in range(info.batch_size)), strict=True)]
    return tuple(grads), (0,) * len(grads)


@register_flop_formula(torch.ops.dynavit.dtn)
def _forward_flops(*arguments: Any, out_shape: Any = None, **_: Any) -> int:
    """Two statistics by the dense separable formula, whatever was cut: 2 FLOPs per multiply-add. Tensors are their shapes."""
    operands, layout = _from_arguments(arguments)
    dense = layout if layout.banded else replace(layout, radius=None)
    samples, _tokens, channels = operands.x
    return 2 * 2 * samples * channels * dense.macs_per_channel


@register_flop_formula(torch.ops.dynavit.dtn_backward)
def _backward_flops(grad: Any, moments: Any, *arguments: Any, out_shape: Any = None, **_: Any) -> int:
    """Transposed kernels and kernel gradients: twice the forward pass, as for any product of two matrices."""
    return 2 * _forward_flops(*arguments)
