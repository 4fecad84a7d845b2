"""Which calls of DTN the Triton kernels take, and why not the others."""

import torch

from ..math import Layout, Operands
from . import gate
from .configuration import LONGEST_SIDE, MOST_CHANNELS

LEAST_CAPABILITY = (8, 0)  # tensor cores with TF32: Ampere and later


def supports(operands: Operands, layout: Layout) -> tuple[bool, str]:
    """Whether the Triton kernels take this call; if not, the reason, and plain torch computes it.

    Half precision never comes here: the base class of norms widens it to float32.
    """
    reason = _obstacle(operands, layout)
    return not reason, reason


def _obstacle(operands: Operands, layout: Layout) -> str:
    x = operands.x
    if not (x.is_cuda or gate.INTERPRETED):
        return "the tokens are not on a CUDA GPU"
    if gate.obstacle():
        return gate.obstacle()
    if x.is_cuda and _capability(x.device) < LEAST_CAPABILITY:
        return "the GPU has no TF32 tensor cores (compute capability below 8.0)"
    if x.dtype != torch.float32 and not gate.INTERPRETED:
        return "float64 has no kernel"
    if operands.position is None:
        return "a uniform average is one mean and needs no kernel"
    if len(layout.grid) != 2:
        return "sequences have no kernel"
    if layout.pool != 1:
        return "pooled statistics have no kernel"
    if max(layout.grid) > LONGEST_SIDE:
        return f"a side of the grid is longer than {LONGEST_SIDE} tokens"
    if x.shape[-1] > MOST_CHANNELS:
        return f"there are more than {MOST_CHANNELS} channels"
    return ""


@torch.compiler.assume_constant_result
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
