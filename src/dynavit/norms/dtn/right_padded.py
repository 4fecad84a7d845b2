"""Sequences that are padded on their right, the only masks that the C kernel takes."""

import torch
from torch import Tensor

from .math import Layout


def right_padded(mask: Tensor, layout: Layout) -> Tensor | None:
    """(b, prefix + t) -> (b,) real tokens of each sample behind its prefix; None if this is no such mask.

    This reads the mask's values, which costs little on a CPU; elsewhere the answer is None.
    """
    if len(layout.grid) != 1 or torch.compiler.is_compiling() or type(mask) is not Tensor or not mask.is_cpu:
        return None  # a fake tensor has no values
    patches = mask[:, layout.prefix :]
    plain = bool(mask[:, : layout.prefix].all()) and not bool((patches[:, 1:] & ~patches[:, :-1]).any())
    return patches.sum(1) if plain else None
