"""Layer Normalization. Ba, Kiros & Hinton 2016, arXiv 1607.06450."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .contract import Grid, Norm
from .factory import register_norm


@register_norm("ln")
class LayerNorm(Norm):
    r"""Each token by the moments of its own channels.

    $$ y_t = \gamma \odot \frac{x_t - \mu_t}{\sqrt{\sigma_t^2 + \epsilon}} + \beta, \qquad
       \mu_t = \tfrac1C \sum_c x_{tc}, \quad \sigma_t^2 = \tfrac1C \sum_c (x_{tc} - \mu_t)^2 $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$ and `bias` $\beta$ (c). Heads play no part.
    """

    mixes_tokens = False
    uses_heads = False
    starts_as = "ln"

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.reset_parameters()

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        if mask is None and (self.weight is None or self.weight.dtype == x.dtype):
            # torch's fused kernel, affine included; it keeps float32 statistics for half-precision inputs by itself.
            tokens, _ = self._as_tokens(x, grid)
            y = F.layer_norm(tokens, (self.dim,), self.weight, self.bias, self.eps)
            return y.to(x.dtype).reshape(x.shape)
        return super().forward(x, grid, mask)

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        weight, bias = (None if each is None else each.to(x.dtype) for each in (self.weight, self.bias))
        return F.layer_norm(x, (self.dim,), weight, bias, self.eps)
