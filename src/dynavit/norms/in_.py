"""Instance Normalization. Ulyanov, Vedaldi & Lempitsky 2016, arXiv 1607.08022; over tokens: Eqn 3 of DTN, arXiv 2112.02624."""

from typing import Any

import torch
from torch import Tensor

from .contract import Grid, Norm
from .factory import register_norm
from .fused import may_fuse
from .statistics.moments import moments, unbiased
from .statistics.standardised import of_channel, standardised


@register_norm("in")
class InstanceNorm(Norm):
    r"""Each channel of a sample by its moments over the sample's tokens, in training and evaluation alike.

    $$ y_{btc} = \gamma_c \frac{x_{btc} - \mu_{bc}}{\sqrt{\sigma_{bc}^2 + \epsilon}} + \beta_c, \qquad
       \mu_{bc} = \tfrac1T \sum_t x_{btc}, \quad \sigma_{bc}^2 = \tfrac1T \sum_t (x_{btc} - \mu_{bc})^2 $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$ and `bias` $\beta$ (c). Heads play no part.
    A single token is its own mean, so it becomes $\beta$.

    Args:
        unbiased: divide the squares by T - 1, as the code released with DTN does, instead of T, as its paper says.
    """

    uses_heads = False

    def __init__(self, dim: int, *, unbiased: bool = False, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.unbiased = unbiased
        self.reset_parameters()

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if mask is None and may_fuse(x):
            count = x.shape[1]
            correction = count / max(count - 1, 1) if self.unbiased else 1.0
            return standardised(x, *self.gain_and_bias(x.dtype), of_channel, self.dim, self.eps, correction)
        return super().transform(x, grid, mask)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        mean, var, count = moments(x, (1,), None if mask is None else mask[..., None])
        if self.unbiased:
            var = unbiased(var, count)
        return (x - mean) * torch.rsqrt(var + self.eps)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", unbiased=True" if self.unbiased else "")
