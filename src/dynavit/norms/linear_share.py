"""A share of a mixture that is a parameter itself, so that it can begin at exactly 0 or 1 and learn from there.

A sigmoid has no slope where it is 1. A clamped number has one at its ends, but none once a step has led it out of [0, 1]. So
gradients pass as if nothing were clamped, and in training the parameter is set back to the nearest end before it is used: a
projected step. The gradient itself is not touched, so that parts of a batch, in whatever processes, add up to the whole's.
"""

import torch
from torch import Tensor

from .transforms import needs_plain_operations


def linear_share(raw: Tensor, dtype: torch.dtype, training: bool) -> Tensor:
    """The share in [0, 1] that a learned number stands for, any shape.

    >>> raw = torch.nn.Parameter(torch.tensor([1.0, 1.2, 0.3]))
    >>> linear_share(raw, torch.float32, training=True)
    tensor([1.0000, 1.0000, 0.3000], grad_fn=<AddBackward0>)
    >>> raw.data
    tensor([1.0000, 1.0000, 0.3000])
    """
    if training and raw.requires_grad and torch.is_grad_enabled() and not needs_plain_operations():
        with torch.no_grad():
            raw.clamp_(0, 1)
    raw = raw.to(dtype)
    return raw + (raw.clamp(0, 1) - raw).detach()
