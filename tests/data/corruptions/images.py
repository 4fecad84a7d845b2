"""Images to corrupt, and how far they got."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import dynavit.data


def photos(count: int, height: int, width: int, channels: int = 3) -> Tensor:
    """Like photographs: most of it smooth, some of it fine. (b, c, h, w) uint8 from 0 to 255."""
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(count, channels, height, width)
    for cells, strength in ((3, 1.0), (6, 0.6), (12, 0.4), (24, 0.25), (48, 0.15)):
        grid = torch.rand(count, channels, cells, cells, generator=generator)
        x += strength * F.interpolate(grid, (height, width), mode="bicubic", align_corners=False)
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    return ((x - low) / (high - low) * 255).byte()


def digits(count: int, side: int) -> Tensor:
    """The embedded digits, enlarged. (b, 1, side, side) uint8."""
    with np.load(Path(dynavit.data.__file__).with_name("digits.npz")) as arrays:
        small = torch.from_numpy(arrays["images"][:count])[:, None] * (255 / 16)
    return F.interpolate(small, (side, side), mode="bilinear", align_corners=False).byte()


def mean_psnr(images: Tensor, corrupted: Tensor) -> float:
    """In dB, the mean over images. Those that did not change count as 100 dB."""
    error = ((images.double() - corrupted.double()) / 255).square().mean((1, 2, 3))
    return (-10 * torch.log10(error.clamp(min=1e-10))).mean().item()
