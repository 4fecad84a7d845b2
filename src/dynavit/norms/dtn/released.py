"""Dynamic Token Normalization as in its authors' released code, so that their checkpoints give the same logits."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..contract import Grid, Norm
from ..factory import register_norm
from .layer import DynamicTokenNorm
from .math import Layout


@register_norm("dtn_released")
class ReleasedDynamicTokenNorm(DynamicTokenNorm):
    r"""Dynamic Token Normalization of the release: heads are scaled to unit RMS first, and variances divide by C - 1.

    $$ u^h = x^h / \sqrt{\overline{(x^h)^2} + \epsilon} \;\text{ per token and head; then DynamicTokenNorm of } u
       \text{ with } \sigma_{ln}^2 = \tfrac{1}{C-1} \sum_c (u_c - \mu_{ln})^2 $$

    So $\lambda = 1$ is not LayerNorm, and the magnitudes of tokens are gone before their statistics are taken. Parameters are
    named as in DynamicTokenNorm; a released positional projection with columns (w0, w1, w2) is `position` [w2, -w0, -w1].

    Shape: (b, t, c) or (b, rows, cols, c) -> the same.

    Args:
        pool: inter-token statistics of cells of pool x pool averaged tokens, each used by all tokens of its cell. The
            variance inside a cell is lost. Released models take grid // 14 on grids larger than 14.
        only_var: the mean is the intra-token one (the release's "dtn_var").
        init: "local" is Eqn 7 for the first floor(sqrt(h))^2 heads and a truncated normal for the rest, with the release's
            opposite sign of offsets; "trunc_normal" is the start of its whole models.
        num_prefix_tokens, backend: as in DynamicTokenNorm.
    """

    dimensions = (2,)
    starts_as = None  # heads are scaled before anything is mixed

    def __init__(
        self,
        dim: int,
        *,
        pool: int = 1,
        only_var: bool = False,
        num_prefix_tokens: int = 0,
        init: Literal["local", "trunc_normal"] = "local",
        backend: Literal["auto", "torch"] = "auto",
        **shared: Any,
    ) -> None:
        if pool < 1:
            raise ValueError(f"ReleasedDynamicTokenNorm: pool is the side of a cell in tokens, at least 1; got {pool}")
        super().__init__(
            dim, num_prefix_tokens=num_prefix_tokens, init=init, pool=pool, only_var=only_var, backend=backend, **shared
        )

    def reset_position(self, position: nn.Parameter) -> None:
        with torch.no_grad():
            nn.init.trunc_normal_(position, std=0.02)
            if self.init == "trunc_normal":
                return
            side = int(self.heads**0.5)
            middle = (side - 1) / 2
            for h in range(side * side):
                position[h] = position.new_tensor([-1.0, -2 * (h // side - middle), -2 * (h % side - middle)])

    def transform(self, x: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        heads = x.unflatten(-1, (self.heads, -1))
        u = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + self.eps)
        return super().transform(u.reshape(x.shape), grid, mask)

    def transform_masked(self, x: Tensor, grid: Grid | None, mask: Tensor) -> Tensor:
        return Norm.transform_masked(self, x, grid, mask)  # every way goes through `transform`

    def layout(self, tokens: int, grid: Grid | None) -> Layout:
        layout = super().layout(tokens, grid)
        if any(n % self.pool for n in layout.grid):
            raise ValueError(
                f"ReleasedDynamicTokenNorm: a {layout.grid[0]}x{layout.grid[1]} grid cannot be cut into cells of "
                f"{self.pool}x{self.pool}; pool must divide both sides"
            )
        return layout._replace(keeps_spread=False, ddof=1)
