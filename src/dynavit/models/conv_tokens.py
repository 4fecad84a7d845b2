"""Convolutions that turn an image into tokens.

Axes:  b samples, c channels. Tokens are row-major on a (rows, cols) grid.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import make_norm

Grid = tuple[int, int]
Split = tuple[int, int, int]  # kernel, stride, padding of a convolution or a soft split


class ConvTokens(nn.Module):
    """Tokens through a convolution, or through several with a norm, if one is given, and a GELU between them.

    (b, in_chans, height, width) -> (b, rows * cols, c), (rows, cols).

    Args:
        splits: (kernel, stride, padding) of each convolution; the last one gives the tokens their `dim` channels.
        width: channels between convolutions.
        norm: a name of `list_norms`, of the pixels after each convolution but the last; None leaves it out.
    """

    def __init__(self, dim: int, splits: Sequence[Split], in_chans: int, width: int = 64, *, norm: str | None = None) -> None:
        super().__init__()
        self.splits, self.in_chans = checked_splits("ConvTokens", splits), in_chans
        *before, last = self.splits
        channels = [in_chans, *[width] * len(before)]
        self.stem = nn.ModuleList(nn.Conv2d(n, width, *split) for n, split in zip(channels, before, strict=False))
        self.norms = nn.ModuleList(make_norm(norm, width, heads=1) for _ in before) if norm is not None else None
        self.proj = nn.Conv2d(channels[-1], dim, *last)

    def forward(self, image: Tensor) -> tuple[Tensor, Grid]:
        if image.dim() != 4 or image.shape[1] != self.in_chans:
            raise ValueError(
                f"ConvTokens: got an input of shape {tuple(image.shape)}; it takes (batch, {self.in_chans}, height, width)"
            )
        self.grids((image.shape[2], image.shape[3]))
        if self.norms is not None:  # norms take channels last, where convolutions are faster too
            image = image.contiguous(memory_format=torch.channels_last)
        for at, conv in enumerate(self.stem):
            image = conv(image)
            if self.norms is not None:
                image = self.norms[at](image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            image = F.gelu(image)
        x = self.proj(image)
        return x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3])

    def grids(self, image: Grid) -> list[Grid]:
        """(rows, cols) after each convolution of an image (height, width)."""
        return grids_of("ConvTokens", "convolutions", self.splits, image)


def checked_splits(name: str, splits: Sequence[Sequence[int]]) -> tuple[Split, ...]:
    """At least one (kernel, stride, padding), as tuples; a file holds lists."""
    if not splits or any(len(split) != 3 or min(split) < 0 or min(split[:2]) < 1 for split in splits):
        raise ValueError(f"{name}: one (kernel, stride, padding) for each step, such as (3, 2, 1); got {splits}")
    return tuple((kernel, stride, padding) for kernel, stride, padding in splits)


def grids_of(name: str, steps: str, splits: Sequence[Split], image: Grid) -> list[Grid]:
    """(rows, cols) after each step over an image (height, width).

    >>> grids_of("ConvTokens", "convolutions", [(3, 1, 1), (3, 2, 1), (3, 2, 1)], (32, 48))
    [(32, 48), (16, 24), (8, 12)]
    """
    found, size = [], image
    for kernel, stride, padding in splits:
        size = ((size[0] + 2 * padding - kernel) // stride + 1, (size[1] + 2 * padding - kernel) // stride + 1)
        if min(size) < 1:
            raise ValueError(f"{name}: an image of {image[0]}x{image[1]} is too small for the {steps} {tuple(splits)}")
        found.append(size)
    return found
