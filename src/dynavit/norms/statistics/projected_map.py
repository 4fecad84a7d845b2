"""An affine map per channel whose input gradient is that of a norm over the batch.

    z = (x - mean) / sigma,    y = scale * z + shift
    dx = (1 / sigma) * [ g * (dy - mean(dy) - z * mean(dy * z)) + (scale - g) * dy ]

`mean` and `sigma` are the batch's, but smoothed statistics may have entered `scale` and `shift`. The part g of the scale is
differentiated as if it had come from the batch: the gradient that would only move or stretch the batch is taken out. The rest
of the scale is differentiated as it is. Means are over the valid tokens of all processes.
"""

from typing import Any

import torch
from torch import Tensor

from ..once_differentiable import once_differentiable
from ..transforms import is_batched
from .distributed import sum_over_processes

_ONCE = (
    "Feature norms (zscore, minmax, ldfn) have first derivatives only in training, where part of the gradient is taken out; "
    "for second derivatives call .eval() first."
)


def projected_map(
    x: Tensor, mean: Tensor, sigma: Tensor, scale: Tensor, shift: Tensor, projected: Tensor, count: Tensor
) -> Tensor:
    """(b, t, c) -> (b, t, c).

    Args:
        mean, sigma: (c) of the batch, constants.
        scale, shift: (c), with the derivatives of y = scale * z + shift.
        projected: (c) g, a constant.
        count: (1) valid tokens of all processes. The gradient of y is 0 on all others.
    """
    y: Tensor = _ProjectedMap.apply(x, mean, 1 / sigma, scale, shift, projected, count)
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
    @once_differentiable(_ONCE)
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inverse, scale, projected, count = ctx.saved_tensors
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
        return dx, None, None, along_scale, along_shift, None, None
