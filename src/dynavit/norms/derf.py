"""Dynamic erf. "Stronger Normalization-Free Transformers" 2025, arXiv 2512.10938."""

from typing import Any

import torch
from torch import Tensor, nn

from .contract import Grid, Norm
from .factory import register_norm


@register_norm("derf")
class Derf(Norm):
    r"""Squashes each element with the error function; no statistics at all.

    $$ y = \gamma \odot \mathrm{erf}(\alpha x + s) + \beta $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c); `alpha` $\alpha$, `shift` s (1).
    s starts at 0; both stay without affine. Heads and eps play no part.

    Args:
        alpha_init: where $\alpha$ starts.
    """

    mixes_tokens = False
    uses_heads = False

    def __init__(self, dim: int, *, alpha_init: float = 0.5, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.alpha_init = alpha_init
        factory = {"device": shared.get("device"), "dtype": shared.get("dtype")}
        self.alpha = nn.Parameter(torch.empty(1, **factory))
        self.shift = nn.Parameter(torch.empty(1, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.alpha_init)
        nn.init.zeros_(self.shift)

    def normalise(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        return torch.erf(self.alpha.to(x.dtype) * x + self.shift.to(x.dtype))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha_init={self.alpha_init:g}"
