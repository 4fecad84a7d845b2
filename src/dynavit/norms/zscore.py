"""Feature normalisation by mean and standard deviation."""

from typing import Any

from .factory import register_norm
from .feature import FeatureNorm


@register_norm("zscore")
class ZScoreNorm(FeatureNorm):
    r"""Each channel by its smoothed mean and standard deviation; a fixed affine map at evaluation.

    $$ y = \gamma \odot \frac{x - C}{D} + \beta \; (+ \; \eta x), \qquad
       C \leftarrow \alpha C + (1 - \alpha) \mu, \quad \log D \leftarrow \alpha \log D + (1 - \alpha) \log \sigma $$

    $\mu$ and $\sigma^2 - \epsilon$ are the batch's mean and variance per channel, over the real tokens of all processes. In
    training this is batch renormalisation (Ioffe 2017, arXiv 1702.03275): the batch's own statistics at first, later the
    smoothed ones as far as `r_max` and `d_max` allow, with the gradient of a batch norm.

    Shape: (b, t, c) or (b, rows, cols, c) -> the same. `weight` $\gamma$, `bias` $\beta$ (c); state as in `FeatureNorm`.

    Args:
        alpha: weight of the old value.
        warmup: share of the run with the batch's statistics alone; the limits then open over as long a time.
        r_max, d_max: how far the smoothed scale and centre may be from the batch's, a factor and a number of scales.
        tau: statistics of a step beyond this many deviations from those of recent steps are clipped before they are smoothed.
        eta: where the weight of x itself starts, one learned number; None leaves it out.
    """

    uses_heads = False

    def __init__(
        self,
        dim: int,
        *,
        alpha: float = 0.95,
        warmup: float = 0.1,
        r_max: float = 3.0,
        d_max: float = 5.0,
        tau: float = 5.0,
        eta: float | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(
            dim, experts=("zscore",), alpha=alpha, warmup=warmup, r_max=r_max, d_max=d_max, tau=tau, eta=eta, **shared
        )
        self.reset_parameters()
