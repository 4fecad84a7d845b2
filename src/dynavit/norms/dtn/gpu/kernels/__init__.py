"""The kernels, `@triton.jit` functions only. Imported by `gate.py` alone.

Names: a grid of `rows` x `cols` tokens, C channels, heads of D channels. A program of a tile kernel has one sample, one head,
BLOCK channels, all rows (padded to RP) and a group of STRIP columns. Offsets inside a sample are int32; samples count in int64.
An argument that is None is left out of the compiled kernel, with everything under its `is not None`.
"""

from .axes import axis_kernels
from .backward import source_gradients, target_gradients
from .forward import forward_tile
from .mass import mass_gradients, masses
from .prefix import prefix_backward, prefix_forward
from .tokens import add_token_gradients, token_moments

__all__ = [
    "add_token_gradients",
    "axis_kernels",
    "forward_tile",
    "mass_gradients",
    "masses",
    "prefix_backward",
    "prefix_forward",
    "source_gradients",
    "target_gradients",
    "token_moments",
]
