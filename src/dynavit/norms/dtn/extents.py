"""Images and sequences of different sizes in one batch: the masks that the C kernel takes."""

import torch
from torch import Tensor

from .math import Layout
from .native import build
from .native.kernel import extents_of


def top_left(mask: Tensor, layout: Layout) -> Tensor | None:
    """(b, prefix + t) -> (b, 2), the real rows and columns of each sample, if they fill the top-left corner of the grid.

    None for masks of other forms, which torch computes. Sequences have one column and are padded on the right. Prefix tokens
    have to be real. This reads the mask's values, which costs little on a CPU; elsewhere the answer is None.
    """
    if torch.compiler.is_compiling() or type(mask) is not Tensor or not mask.is_cpu:
        return None  # a fake tensor has no values
    return extents_of(mask, layout) if build.native_kernel_available() else None
