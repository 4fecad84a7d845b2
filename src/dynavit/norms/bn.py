"""Batch Normalization. Ioffe & Szegedy 2015, arXiv 1502.03167."""

from typing import Any

from .factory import register_norm
from .statistics.running import AffineAtEvaluation


@register_norm("bn")
class BatchNorm(AffineAtEvaluation):
    r"""Each channel by the moments of all tokens of all samples; at evaluation by running moments, a fixed affine map.

    $$ y_{btc} = \gamma_c \frac{x_{btc} - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} + \beta_c, \qquad
       \mu_c = \tfrac1{BT} \sum_{bt} x_{btc}, \quad \sigma_c^2 = \tfrac1{BT} \sum_{bt} (x_{btc} - \mu_c)^2 $$

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$; buffers `running_mean` and
    `running_var`; all (c). Padding is not counted; several processes normalise their joint batch.

    Args:
        momentum: weight of the new batch in the running moments.
    """

    uses_heads = False

    def __init__(self, dim: int, *, momentum: float = 0.1, **shared: Any) -> None:
        super().__init__(dim, momentum=momentum, **shared)
        self.reset_parameters()
