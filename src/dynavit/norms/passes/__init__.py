"""Norms with statistics of channels in C: few passes over the tokens, and nothing small in between.

On CPUs, where the library was built. What it computes, and what does the work elsewhere, stands in `statistics/`:
`standardised.py` and `projected_map.py`.
"""

import torch
from torch import Tensor

from .build import passes_available

_REALS = (torch.float32, torch.float64)


def may_be_native(x: Tensor) -> bool:
    """Whether tokens can go to C. Whoever watches operations, or has no real memory, sees torch's."""
    return (
        x.is_cpu
        and x.numel() > 0
        and x.dtype in _REALS
        and type(x) in (Tensor, torch.nn.Parameter)
        and not torch._C._len_torch_dispatch_stack()
        and passes_available()
    )
