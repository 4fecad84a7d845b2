"""Batch statistics far from those of recent steps are clipped before they enter a memory."""

import torch
from torch import Tensor

from .median import median

# A window of equal values has no deviation; real statistics always move a little.
FLOOR = 0.05


def guard(new: Tensor, window: Tensor, unit: Tensor, tau: float) -> Tensor:
    """Clip statistics to within tau deviations of their recent values.

    The deviation is the median distance from the window's median, at least `FLOOR` units.

    Args:
        new: (r, c) statistics of this step.
        window: (m, r, c) those of the last m steps, as clipped then.
        unit: (r, c) the unit of each statistic.
    """
    middle = median(window)
    deviation = median((window - middle).abs())
    reach = tau * torch.maximum(deviation, FLOOR * unit)
    return torch.clamp(new, middle - reach, middle + reach)
