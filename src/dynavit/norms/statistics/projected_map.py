"""An affine map per channel whose input gradient is that of a norm over the batch.

    z = (x - mean) / sigma,    y = scale * z + shift
    dx = (1 / sigma) * [ g * (dy - mean(dy) - z * mean(dy * z)) + (scale - g) * dy ]

`mean` and `sigma` are the batch's, but smoothed statistics may have entered `scale` and `shift`. The part g of the scale is
differentiated as if it had come from the batch: the gradient that would only move or stretch the batch is taken out. The rest
of the scale is differentiated as it is. Means are over the valid tokens of all processes. A LayerNorm may stand beside it.
"""

from typing import Any

import torch
from torch import Tensor

from ..beside import Beside
from ..once_differentiable import once_differentiable
from ..passes import may_be_native, native
from ..transforms import is_batched
from .distributed import sum_over_processes

ONCE = (
    "Feature norms (zscore, minmax, ldfn) have first derivatives only in training, where part of the gradient is taken out; "
    "for second derivatives call .eval() first."
)


def projected_map(
    x: Tensor,
    mean: Tensor,
    sigma: Tensor,
    scale: Tensor,
    shift: Tensor,
    projected: Tensor,
    count: Tensor,
    beside: Beside | None = None,
    whole: bool = False,
) -> Tensor:
    """(b, t, c) -> (b, t, c).

    Args:
        mean, sigma: (c) of the batch, constants.
        scale, shift: (c), with the derivatives of y = scale * z + shift.
        projected: (c) g, a constant.
        count: (1) valid tokens of all processes. The gradient of y is 0 on all others.
        beside: a LayerNorm that is added.
        whole: all tokens of x are valid, and there are no others in other processes.
    """
    y: Tensor
    if whole and not torch.compiler.is_compiling() and may_be_native(x):
        return native_projected_map(x, mean, 1 / sigma, scale, shift, projected, beside)
    y = _ProjectedMap.apply(x, mean, 1 / sigma, scale, shift, projected, count)
    return y if beside is None else beside.added_to(y, x)


def native_projected_map(
    x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor, projected: Tensor, beside: Beside | None
) -> Tensor:
    """The same by C, for tokens that `may_be_native` and that all count; `inverse` is 1 / sigma."""
    y: Tensor
    norm_weight, norm_eps = (None, 0.0) if beside is None else (beside.weight, beside.eps)
    if beside is not None and beside.bias is not None:
        shift = shift + beside.bias
    y = _NativeProjectedMap.apply(x.contiguous(), mean, inverse, scale, shift, projected, norm_weight, norm_eps)
    return y


class _ProjectedMap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor, projected: Tensor, count: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, mean, inverse, scale, projected, count)
        y = x - mean
        return torch.addcmul(shift, y, scale * inverse, out=y)

    @staticmethod
    @once_differentiable(ONCE)
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, along_scale, along_shift = _gradients(dy, *ctx.saved_tensors)
        return dx, None, None, along_scale, along_shift, None, None


class _NativeProjectedMap(torch.autograd.Function):
    """The same by C, where every token counts."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        inverse: Tensor,
        scale: Tensor,
        shift: Tensor,
        projected: Tensor,
        norm_weight: Tensor | None,
        norm_eps: float,
    ) -> Tensor:
        mean, inverse, scale, shift, projected = (part.contiguous() for part in (mean, inverse, scale, shift, projected))
        norm_weight = None if norm_weight is None else norm_weight.contiguous()
        y, tokens = torch.empty_like(x), None if norm_weight is None else native.token_moments_like(x)
        native.run("projected_forward", x, norm_eps, x, mean, inverse, scale, shift, norm_weight, tokens, y)
        ctx.save_for_backward(x, mean, inverse, scale, projected, norm_weight, tokens)
        return y

    @staticmethod
    @once_differentiable(ONCE)
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inverse, scale, projected, norm_weight, tokens = ctx.saved_tensors
        if is_batched(dy):
            count = x.new_full((1,), x.shape[0] * x.shape[1])
            dx, along_scale, along_shift = _gradients(dy, x, mean, inverse, scale, projected, count)
            if norm_weight is None:
                return dx, None, None, along_scale, along_shift, None, None, None
            of_norm, of_weight = _norm_gradients(dy, x, norm_weight, tokens)
            return dx + of_norm, None, None, along_scale, along_shift, None, of_weight, None
        dx, along_scale, along_shift = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
        along_norm = None if norm_weight is None else torch.empty_like(norm_weight)
        read = (x, mean, inverse, scale, projected, norm_weight, tokens, dy.contiguous())
        native.run("projected_backward", x, *read, dx, along_scale, along_shift, along_norm)
        return dx, None, None, along_scale, along_shift, None, along_norm, None


def _norm_gradients(dy: Tensor, x: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Of LayerNorm's input and gain, from the mean and the inverse deviation of each token (b, t, 2)."""
    level, inverse = tokens.split(1, -1)
    normed, e = (x - level) * inverse, dy * weight
    dx = inverse * (e - e.mean(-1, keepdim=True) - normed * (e * normed).mean(-1, keepdim=True))
    return dx, (dy * normed).sum((0, 1))


def _gradients(
    dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, projected: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, scale and shift."""
    # Many gradients at once cannot be written into one tensor, and a compiler decides by itself what it writes where.
    plain = torch.compiler.is_compiling() or is_batched(dy)
    work = x - mean
    along_shift = dy.sum((0, 1))
    along_scale = (work * dy if plain else work.mul_(dy)).sum((0, 1)) * inverse
    # The parameters' gradients stay this process's own; data parallelism joins them.
    all_shift, all_scale = sum_over_processes(along_shift, along_scale)
    share = projected * inverse / count.clamp(min=1)
    level, slope = share * all_shift, share * all_scale * inverse
    if plain:
        dx = dy * (scale * inverse) - level - work * slope
    else:
        # x - mean once more: a pass over memory that is at hand costs less than a second tensor.
        torch.sub(x, mean, out=work)
        dx = torch.addcmul(level.neg(), work, slope, value=-1, out=work).addcmul_(dy, scale * inverse)
    return dx, along_scale, along_shift
