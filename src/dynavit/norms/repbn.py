"""A batch norm that can be re-parameterised. Guo et al. 2024, "SLAB", arXiv 2405.11582."""

from typing import Any

import torch
from torch import Tensor, nn

from .factory import register_norm
from .statistics.running import AffineAtEvaluation


class BatchNormPlusInput(AffineAtEvaluation):
    """BN(x) + eta * x, the common part of `repbn` and `prepbn`. At evaluation one affine map."""

    def __init__(self, dim: int, *, eta: float, **shared: Any) -> None:
        super().__init__(dim, **shared)
        self.eta_init = eta
        # Not a scalar: sharded training splits parameters along their first axis.
        self.eta = nn.Parameter(torch.empty(1, device=shared.get("device"), dtype=shared.get("dtype")))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.eta, self.eta_init)

    def input_gain(self, dtype: torch.dtype, share: Tensor | None) -> Tensor:
        eta = self.eta.to(dtype)
        return eta if share is None else eta * share

    def running_map(self) -> tuple[Tensor, Tensor]:
        scale, shift = super().running_map()
        return scale + self.eta, shift

    def scalars(self) -> dict[str, float]:
        return {"eta": float(self.eta.detach())} | super().scalars()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eta={self.eta_init:g}"


@register_norm("repbn")
class RepBN(BatchNormPlusInput):
    r"""Batch norm and, beside it, the input itself times one learned number.

    $$ y = \mathrm{BN}(x) + \eta x, \qquad \text{at evaluation} \quad
       y = \Big(\frac{\gamma}{\sigma} + \eta\Big) x + \beta - \frac{\gamma \mu}{\sigma} $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c), `eta` $\eta$ (1), which stays
    without affine; buffers `running_mean` $\mu$ and `running_var` $\sigma^2 - \epsilon$ (c) as in `bn`.

    Args:
        eta: where $\eta$ starts. The release has 1 for images, 0 for language.
        momentum: weight of the new batch in the running moments.
    """

    uses_heads = False

    def __init__(self, dim: int, *, eta: float = 1.0, momentum: float = 0.1, **shared: Any) -> None:
        super().__init__(dim, eta=eta, momentum=momentum, **shared)
        self.reset_parameters()
