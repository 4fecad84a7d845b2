"""Sums of losses; what they are divided by is each detector's business."""

import torch
import torch.nn.functional as F
from torch import Tensor

ALPHA, GAMMA = 0.25, 2.0


def focal_sum(logits: Tensor, classes: Tensor) -> Tensor:
    """Focal loss of (n, classes) logits; `classes` (n,) are numbers, < 0 for background. Lin et al. 2017, arXiv 1708.02002.

    Of each number p, the chance of what is the case: -a (1 - p)^2 log p with a = 1/4 for things and 3/4 for what is not there.
    """
    things = (classes >= 0).nonzero().flatten()
    target = torch.zeros_like(logits)
    target[things, classes[things]] = 1
    chance = logits.sigmoid()
    missed = chance * (1 - target) + (1 - chance) * target  # 1 - p
    weight = (ALPHA * target + (1 - ALPHA) * (1 - target)) * missed**GAMMA
    return (weight * F.binary_cross_entropy_with_logits(logits, target, reduction="none")).sum()


def l1_sum(found: Tensor, target: Tensor) -> Tensor:
    """Absolute differences of offsets (n, 4)."""
    return (found - target).abs().sum()


def wide(x: Tensor) -> Tensor:
    """In at least float32: sums over many anchors are never taken in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
