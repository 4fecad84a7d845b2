"""Group Normalization. Wu & He 2018, arXiv 1803.08494."""

from typing import Any

import torch
from torch import Tensor

from .contract import Grid, Norm
from .factory import register_norm
from .fused import may_fuse
from .statistics.moments import moments
from .statistics.standardised import of_head, standardised


@register_norm("gn")
class GroupNorm(Norm):
    r"""Each head of a sample by the moments of all its tokens and channels. The groups are the heads.

    $$ y_{bthd} = \gamma_{hd} \frac{x_{bthd} - \mu_{bh}}{\sqrt{\sigma_{bh}^2 + \epsilon}} + \beta_{hd}, \qquad
       \mu_{bh} = \tfrac1{TD} \sum_{td} x_{bthd}, \quad \sigma_{bh}^2 = \tfrac1{TD} \sum_{td} (x_{bthd} - \mu_{bh})^2 $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same, c = h d. `weight` $\gamma$ and `bias` $\beta$ (c).
    """

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.reset_parameters()

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if mask is None and may_fuse(x):
            return standardised(x, *self.gain_and_bias(x.dtype), of_head(self.heads), self.heads, self.eps)
        return super().transform(x, grid, mask)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        x = x.unflatten(-1, (self.heads, -1))
        mean, var, _ = moments(x, (1, 3), None if mask is None else mask[..., None, None])
        return ((x - mean) * torch.rsqrt(var + self.eps)).flatten(-2)
