"""Colours of a batch of images in [0, 1], each changed by a strength of its own: (b, c, h, w) and (b,) -> (b, c, h, w).

The formulas are torchvision's. Images of one channel have no saturation and no hue, and stay as they are there.
"""

import torch
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)


def brightened(images: Tensor, factor: Tensor) -> Tensor:
    return (images * _wide(factor)).clamp_(0, 1)


def contrasted(images: Tensor, factor: Tensor) -> Tensor:
    """Away from the mean brightness of the image."""
    return _mixed(images, grey(images).mean((1, 2, 3), keepdim=True), factor)


def saturated(images: Tensor, factor: Tensor) -> Tensor:
    """Away from the grey image."""
    return images if images.shape[1] == 1 else _mixed(images, grey(images), factor)


def turned_in_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Hues go round by `turn` of the circle of colours, 0 to 1."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    value, low = images.amax(1), images.amin(1)
    chroma = value - low
    safe = torch.where(chroma == 0, 1.0, chroma)
    sixth = torch.where(
        value == red, (green - blue) / safe, torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    )
    sixth = sixth + 6 * turn[:, None, None]
    # Channel n of a colour with this hue, value and chroma; n = 5, 3, 1 for red, green, blue.
    n = torch.tensor([5.0, 3.0, 1.0], dtype=images.dtype, device=images.device)[:, None, None]
    k = (n + sixth[:, None]) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp_(0, 1)


def greyed(images: Tensor, chosen: Tensor) -> Tensor:
    """Without colour where `chosen`, (b,) bool."""
    return images if images.shape[1] == 1 else torch.where(_wide(chosen), grey(images), images)


def solarised(images: Tensor, chosen: Tensor) -> Tensor:
    """Bright pixels, from byte 128 on, turned to their negative where `chosen`, (b,) bool."""
    return torch.where(_wide(chosen) & (images >= 128 / 255), 1 - images, images)


def blurred(images: Tensor, radius: Tensor) -> Tensor:
    """By a Gaussian of this deviation in pixels, whose weights outside of the image go to those inside; 0 changes nothing."""
    rows, cols = (_gaussian(side, radius) for side in images.shape[-2:])
    return rows[:, None] @ images @ cols[:, None].mT


def grey(images: Tensor) -> Tensor:
    """(b, 1, h, w)"""
    if images.shape[1] == 1:
        return images
    weights = torch.tensor(LUMA, dtype=images.dtype, device=images.device)
    return torch.einsum("bchw,c->bhw", images, weights)[:, None]


def _gaussian(side: int, radius: Tensor) -> Tensor:
    """(b, side, side), rows add up to 1."""
    place = torch.arange(side, dtype=radius.dtype, device=radius.device)
    squares = (place[:, None] - place) ** 2
    return (-squares / (2 * radius.clamp(min=1e-3) ** 2)[:, None, None]).softmax(-1)


def _mixed(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = _wide(factor)
    return (factor * images + (1 - factor) * other).clamp_(0, 1)


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None, None]
