"""The logit of a share, of which 1 has one too."""

import math

# sigmoid(40) is 1.0 exactly in float32 and float64 (1 - 4e-18), and unlike infinity 40 survives arithmetic and file formats.
ONE = 40.0


def share_logit(share: float) -> float:
    """The x with sigmoid(x) = share, for shares above 0.

    >>> share_logit(0.5), share_logit(1.0)
    (0.0, 40.0)
    """
    return ONE if share == 1 else math.log(share / (1 - share))
