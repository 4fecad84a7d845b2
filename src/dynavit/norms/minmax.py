"""Feature normalisation by minimum and maximum."""

from typing import Any

from .factory import register_norm
from .feature import FeatureNorm
from .statistics.ranges import Extrema


@register_norm("minmax")
class MinMaxNorm(FeatureNorm):
    r"""Each channel by its smoothed range over an image; a fixed affine map at evaluation.

    $$ y = \gamma \odot \frac{x - C}{D} + \beta \; (+ \; \eta x), \qquad
       c = \tfrac1B \sum_b \frac{\max_t x_{bt} + \min_t x_{bt}}{2}, \quad
       d^2 = \Big( \tfrac1B \sum_b \frac{\max_t x_{bt} - \min_t x_{bt}}{2 \rho_{T_b}} \Big)^2 + \epsilon $$

    per channel, C and log D the moving averages of c and log d. $\rho_T = \Phi^{-1}((T - 3/8) / (T + 1/4))$ is the expected
    maximum of T normal numbers, so on normal features D is the standard deviation, whatever the number of real tokens. The
    form (x - min) / (max - min) is this one up to $\gamma$ and $\beta$. An image of one token has no range: the standard
    deviation of the batch stands for its share of d. Training goes as in `zscore`.

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c); state as in `FeatureNorm`.

    Args:
        extrema: the mean of each image's own range ("image_mean"), of each image's range between quantiles ("quantile"), or the
            range of the whole batch ("batch"), which one odd token decides.
        quantile: the share of tokens beyond each end with extrema="quantile".
        alpha, warmup, r_max, d_max, tau, eta: as in `zscore`.
    """

    uses_heads = False

    def __init__(
        self,
        dim: int,
        *,
        extrema: Extrema = "image_mean",
        quantile: float = 0.005,
        alpha: float = 0.95,
        warmup: float = 0.1,
        r_max: float = 3.0,
        d_max: float = 5.0,
        tau: float = 5.0,
        eta: float | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(
            dim,
            experts=("minmax",),
            extrema=extrema,
            quantile=quantile,
            alpha=alpha,
            warmup=warmup,
            r_max=r_max,
            d_max=d_max,
            tau=tau,
            eta=eta,
            **shared,
        )
        self.reset_parameters()
