"""One call for Dynamic Token Normalization: the C kernel where it can run, else the equations in torch.

    normalise_tokens(x, weight, bias, lam_mean, lam_var, position, layout, mask)

The C kernel sits behind the dispatcher op `dynavit::dtn`, so that torch.compile, FLOP counters and autograd see one node;
torch.export and ONNX see the plain products instead. Both ways save only x for the backward pass.
"""

import ctypes
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .kernels import kernel_cut
from .math import Layout, token_norm
from .native.build import load_native

_ONCE = (
    "DTN's fast path has first derivatives only. For second derivatives (gradient penalties, Hessians) "
    'build the layer with backend="torch".'
)


def normalise_tokens(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    lam_mean: Tensor,
    lam_var: Tensor,
    position: Tensor | None,
    layout: Layout,
    mask: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """(b, prefix + t, c) -> weight * (x - mu) / sqrt(sigma^2 + eps) + bias in x's dtype (float32 or float64)."""
    plain = backend == "torch" or torch.compiler.is_exporting()
    native = not plain and position is not None and layout.pool == 1 and x.is_cpu and native_kernel_available()
    lengths = _lengths(mask, layout) if native and mask is not None else None
    if native and (mask is None or lengths is not None):
        arguments = (x, weight, bias, lam_mean, lam_var, position, lengths, *_as_arguments(layout))
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return torch.ops.dynavit.dtn(*arguments)[0]
        return _Native.apply(*arguments)
    tensors = (x, weight, bias, lam_mean, lam_var, position)
    if plain or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return _plain(*tensors, layout, mask)
    return _Recomputed.apply(*tensors, layout, mask)


@torch.compiler.assume_constant_result
def native_kernel_available() -> bool:
    return load_native("dtn") is not None


def _lengths(mask: Tensor, layout: Layout) -> Tensor | None:
    """(b,) real tokens of each sample if this is a sequence padded on its right, the only masks the C kernel takes.

    This looks at the mask's values, which costs nothing on a CPU, the only place where it is asked.
    """
    if len(layout.grid) != 1 or torch.compiler.is_compiling() or type(mask) is not Tensor:  # a fake tensor has no values
        return None
    patches = mask[:, layout.prefix :]
    plain = bool(mask[:, : layout.prefix].all()) and not bool((patches[:, 1:] & ~patches[:, :-1]).any())
    return patches.sum(1) if plain else None


def _plain(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    lam_mean: Tensor,
    lam_var: Tensor,
    position: Tensor | None,
    layout: Layout,
    mask: Tensor | None,
) -> Tensor:
    # Autocast would take the products to half precision; statistics stay in x's.
    with _full_precision(x.device):
        y = token_norm(x, lam_mean, lam_var, position, layout, mask)
        if weight is not None:
            y = y * weight.to(y.dtype)
        return y if bias is None else y + bias.to(y.dtype)


def _full_precision(device: torch.device) -> AbstractContextManager[Any]:
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


class _Refusing(torch.autograd.Function):
    """Passes gradients through. They depend on `inputs`, but asking how is an error."""

    @staticmethod
    def forward(ctx: Any, inputs: int, *tensors: Any) -> tuple[Any, ...]:
        return tensors[inputs:]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(_ONCE)


def _once_differentiable(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """As torch's decorator of this name, with an error that names the way out."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            grads = backward(ctx, grad)
        if not torch.is_grad_enabled():  # no one asked for create_graph
            return grads
        inputs = (grad, *ctx.saved_tensors)
        return _Refusing.apply(len(inputs), *inputs, *grads)

    return wrapped


class _Recomputed(torch.autograd.Function):
    """`_plain`, but only its inputs are kept for the backward pass, which computes the statistics again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, layout, mask = arguments
        ctx.save_for_backward(*tensors)
        ctx.rest = layout, mask
        return _plain(*arguments)

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors: list[Any] = [
            tensor if tensor is None else tensor.detach().requires_grad_(need)
            for tensor, need in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
        with torch.enable_grad(), _full_precision(grad.device):
            y = _plain(*(*tensors, *ctx.rest))
            grads = iter(torch.autograd.grad(y, wanted, grad, allow_unused=True))
        return *(next(grads) if tensor is not None and tensor.requires_grad else None for tensor in tensors), None, None


# ---- the dispatcher op over the C kernel ----

_TENSORS = "Tensor x, Tensor? weight, Tensor? bias, Tensor lam_mean, Tensor lam_var, Tensor position, Tensor? lengths"
_LAYOUT = "int[] grid, int prefix, int radius, bool banded, int ddof, float eps"
torch.library.define("dynavit::dtn", f"({_TENSORS}, {_LAYOUT}) -> (Tensor, Tensor)")
torch.library.define(
    "dynavit::dtn_backward",
    f"(Tensor grad, Tensor moments, {_TENSORS}, {_LAYOUT}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _as_arguments(layout: Layout) -> tuple[Any, ...]:
    radius = -1 if layout.radius is None else layout.radius
    return list(layout.grid), layout.prefix, radius, layout.banded, layout.ddof, layout.eps


@torch.library.impl("dynavit::dtn", "CPU")
def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    lam_mean: Tensor,
    lam_var: Tensor,
    position: Tensor,
    lengths: Tensor | None,
    *layout: Any,
) -> tuple[Tensor, Tensor]:
    call = _Call(x, weight, bias, lam_mean, lam_var, position, lengths, layout)
    y = torch.empty_like(call.x) if lengths is None else torch.zeros_like(call.x)  # padding is not written
    moments = torch.empty(*x.shape[:2], 2, dtype=torch.float64)
    call("dtn_forward", moments, y)
    return y, moments


@torch.library.impl("dynavit::dtn_backward", "CPU")
def _backward(
    grad: Tensor,
    moments: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    lam_mean: Tensor,
    lam_var: Tensor,
    position: Tensor,
    lengths: Tensor | None,
    *layout: Any,
) -> tuple[Tensor, ...]:
    call = _Call(x, weight, bias, lam_mean, lam_var, position, lengths, layout)
    grad_x = torch.empty_like(call.x)
    channels, heads = x.shape[-1], lam_mean.shape[0]
    sums = torch.zeros(2 * channels + 5 * heads, dtype=torch.float64)
    small = sums.split([channels, channels, heads, heads, 3 * heads])
    call("dtn_backward", moments, grad.to(x.dtype).contiguous(), grad_x, *small)
    grad_position = small[4].view(heads, 3)
    if position.shape[1] == 2:  # 1-D runs along the rows: [d^2, dy]
        grad_position = grad_position[:, ::2]
    # Each gradient is cast to its own fresh tensor: the pieces of `sums` must not leave as views of one another.
    like = (weight if weight is not None else x, bias if bias is not None else x, lam_mean, lam_var, position)
    rest = [part.to(other.dtype, copy=True) for part, other in zip((*small[:4], grad_position), like, strict=True)]
    return grad_x, *rest


class _Call:
    """Arguments of the C entries: pointers to contiguous arrays, kept alive until the call is over."""

    def __init__(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        lam_mean: Tensor,
        lam_var: Tensor,
        position: Tensor,
        lengths: Tensor | None,
        layout: tuple[Any, ...],
    ) -> None:
        grid, prefix, radius, _, ddof, eps = layout
        rows, cols = grid if len(grid) == 2 else (grid[0], 1)
        if position.shape[1] == 2:
            position = torch.stack([position[:, 0], torch.zeros_like(position[:, 0]), position[:, 1]], 1)
        self.x = x.contiguous()
        self.inputs = [
            self.x,
            *(None if part is None else part.to(x.dtype).contiguous() for part in (weight, bias)),
            *(part.double().contiguous() for part in (lam_mean, lam_var, position)),
        ]
        threads = torch.get_num_threads()
        shape = (x.shape[0], prefix, rows, cols, x.shape[2], lam_mean.shape[0], ddof, radius, threads)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.lengths = None if lengths is None else lengths.to(torch.int64).contiguous()
        self.numbers = (ctypes.c_double(eps), ctypes.c_double(kernel_cut(x.dtype)))
        self.suffix = {torch.float32: "f32", torch.float64: "f64"}[x.dtype]

    def __call__(self, entry: str, *arrays: Tensor) -> None:
        if self.x.numel() == 0:
            return
        library = load_native("dtn")
        assert library is not None, "the op is only called where the C kernel was built"
        lengths, *pointers = (
            ctypes.c_void_p(None if part is None else part.data_ptr()) for part in (self.lengths, *self.inputs, *arrays)
        )
        getattr(library, f"{entry}_{self.suffix}")(self.shape, lengths, *self.numbers, *pointers)


@torch.library.register_fake("dynavit::dtn")
def _forward_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    moments = x.new_empty(*x.shape[:2], 2, dtype=torch.float64)
    return torch.empty_like(x, memory_format=torch.contiguous_format), moments


@torch.library.register_fake("dynavit::dtn_backward")
def _backward_fake(
    grad: Tensor,
    moments: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    lam_mean: Tensor,
    lam_var: Tensor,
    position: Tensor,
    lengths: Tensor | None,
    *_: Any,
) -> tuple[Tensor, ...]:
    channels = x.shape[-1]
    affine = [x.new_empty(channels, dtype=(x if part is None else part).dtype) for part in (weight, bias)]
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return grad_x, *affine, *(torch.empty_like(part) for part in (lam_mean, lam_var, position))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], output[1])
    ctx.layout = inputs[7:]


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *tensors, moments = ctx.saved_tensors
    grads = torch.ops.dynavit.dtn_backward(grad, moments, *tensors, *ctx.layout)
    kept = [g if need else None for g, need in zip(grads, ctx.needs_input_grad, strict=False)]
    return *kept, None, *(None,) * len(ctx.layout)


class _Native(torch.autograd.Function):
    """The op with its gradient, for eager mode: what `register_autograd` does, without its 0.05 ms of bookkeeping per call."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        output = torch.ops.dynavit.dtn(*arguments)
        _save(ctx, arguments, output)
        return output[0]

    @staticmethod
    @_once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, grad, None)


def _refuse(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(_ONCE)


torch.library.register_autograd("dynavit::dtn", _differentiate, setup_context=_save)
torch.library.register_autograd("dynavit::dtn_backward", _refuse)


@register_flop_formula(torch.ops.dynavit.dtn)
def _forward_flops(x: Any, *rest: Any, out_shape: Any = None, **_: Any) -> int:
    """Two statistics by the dense separable formula, whatever was cut: 2 FLOPs per multiply-add."""
    grid, prefix, radius, banded = rest[6:10]
    macs = Layout(tuple(grid), prefix, radius if banded else None).macs_per_channel
    return 2 * 2 * x[0] * x[2] * macs


@register_flop_formula(torch.ops.dynavit.dtn_backward)
def _backward_flops(grad: Any, moments: Any, *rest: Any, out_shape: Any = None, **_: Any) -> int:
    """Transposed kernels and kernel gradients: twice the forward pass, as for any product of two matrices."""
    return 2 * _forward_flops(*rest)
