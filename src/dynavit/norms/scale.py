"""ScaleNorm. Nguyen & Salazar 2019, "Transformers without Tears", arXiv 1910.05895."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from .contract import Grid, Norm
from .factory import register_norm


@register_norm("scale")
class ScaleNorm(Norm):
    r"""Each token at one learned length.

    $$ y_t = g \, \frac{x_t}{\max(\lVert x_t \rVert_2, \epsilon)}, \qquad g \text{ started at } \sqrt C $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` g (1), no bias; without affine, tokens have length 1.
    Heads play no part.

    Args:
        per_channel: a gain for each channel, `weight` (c), as the code released with DTN (arXiv 2112.02624) has it.
    """

    has_bias = False
    mixes_tokens = False
    uses_heads = False

    def __init__(self, dim: int, *, per_channel: bool = False, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.per_channel = per_channel
        if self.affine and not per_channel:
            self.weight = nn.Parameter(torch.empty(1, device=shared.get("device"), dtype=shared.get("dtype")))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, math.sqrt(self.dim))

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=self.eps)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", per_channel=True" if self.per_channel else "")
