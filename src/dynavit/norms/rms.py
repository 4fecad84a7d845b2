"""Root Mean Square Layer Normalization. Zhang & Sennrich 2019, arXiv 1910.07467."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit._trace import is_tracing

from .contract import Grid, Norm
from .factory import register_norm


@register_norm("rms")
class RMSNorm(Norm):
    r"""Each token by the root mean square of its own channels; nothing is subtracted, and there is no bias.

    $$ y_t = \gamma \odot \frac{x_t}{\sqrt{\tfrac1C \sum_c x_{tc}^2 + \epsilon}} $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$ (c). Heads play no part.
    """

    has_bias = False
    mixes_tokens = False
    uses_heads = False
    starts_as = "rms"

    def __init__(self, dim: int, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.reset_parameters()

    def forward(self, x: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        if mask is None and (self.weight is None or self.weight.dtype == x.dtype) and not is_tracing():
            # As in LayerNorm: one torch call, which widens half-precision inputs by itself. ONNX's old exporter lacks it.
            tokens, _ = self._as_tokens(x, grid)
            y = F.rms_norm(tokens, (self.dim,), self.weight, self.eps)
            return y.to(x.dtype).reshape(x.shape)
        return super().forward(x, grid, mask)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if is_tracing():
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return F.rms_norm(x, (self.dim,), eps=self.eps)
