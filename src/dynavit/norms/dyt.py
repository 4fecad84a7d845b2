"""Dynamic Tanh. Zhu et al. 2025, "Transformers without Normalization", arXiv 2503.10622."""

from typing import Any

import torch
from torch import Tensor, nn

from .contract import Grid, Norm
from .factory import register_norm


@register_norm("dyt")
class DyT(Norm):
    r"""Squashes each element; no statistics at all.

    $$ y = \gamma \odot \tanh(\alpha x) + \beta $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c), `alpha` $\alpha$ (1), which stays
    without affine. Heads and eps play no part.

    Args:
        alpha_init: where $\alpha$ starts.
    """

    mixes_tokens = False
    uses_heads = False

    def __init__(self, dim: int, *, alpha_init: float = 0.5, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.alpha_init = alpha_init
        self.alpha = nn.Parameter(torch.empty(1, device=shared.get("device"), dtype=shared.get("dtype")))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.alpha_init)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        return torch.tanh(self.alpha.to(x.dtype) * x)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha_init={self.alpha_init:g}"
