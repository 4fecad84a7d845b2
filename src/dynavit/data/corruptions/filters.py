"""Filters that several corruptions share: smoothing, streaks, zooming into the middle. (b, c, h, w) to the same."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Border = Literal["edge", "mirror", "mirror_without_edge"]  # pixels beyond the right edge of a b c: c c, c b, b a


def convolve(x: Tensor, kernel: Tensor, border: Border) -> Tensor:
    """By a kernel (rows, columns) of odd sides that is its own mirror image. Fourier transforms: the kernels are large."""
    (h, w), (rows, columns) = x.shape[-2:], kernel.shape
    x = _extend(x, rows // 2, columns // 2, border)
    size = x.shape[-2:]  # of a circle: values that wrap around it fall on the extension, which is cut off
    spectrum = torch.fft.rfft2(x) * torch.fft.rfft2(kernel.to(x), s=size)
    return torch.fft.irfft2(spectrum, s=size)[..., rows - 1 : rows - 1 + h, columns - 1 : columns - 1 + w]


def smooth(x: Tensor, sigma: tuple[float, float], border: Border = "edge", cut: float = 4.0) -> Tensor:
    """A Gaussian of standard deviations (rows, columns) in pixels, cut off at `cut` of them.

    A matrix for each side: some are wider than the image, and what lies beyond its edge is never written out."""
    rows, columns = (_smoothing(side, s, border, cut).to(x) for side, s in zip(x.shape[-2:], sigma, strict=True))
    return rows @ x @ columns.T


def _smoothing(side: int, sigma: float, border: Border, cut: float) -> Tensor:
    """(side, side): the weight of each pixel of a line in each smoothed one."""
    radius = int(cut * sigma + 0.5)
    places = _places(side, radius, border).unfold(0, 2 * radius + 1, 1)
    weights = gaussian(radius, sigma).expand(side, -1)
    return torch.zeros(side, side, dtype=torch.float64).scatter_add_(1, places, weights)


def gaussian(radius: int, sigma: float) -> Tensor:
    """(2 radius + 1,), sum 1."""
    weights = torch.exp(-torch.arange(-radius, radius + 1, dtype=torch.float64).square() / (2 * sigma**2))
    return weights / weights.sum()


def streak(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """The mean over 2 radius + 1 pixels from each pixel on, in the direction of its image's angle (b,), weighted by half a
    Gaussian. Beyond the edge its pixels go on."""
    b, c, h, w = x.shape
    weights = torch.exp(-torch.arange(2 * radius + 1, dtype=torch.float64).square() / (2 * sigma**2))
    flat, out = x.flatten(2), torch.zeros_like(x)
    for steps, weight in enumerate((weights / weights.sum()).tolist()):
        down, right = (torch.ceil(steps * part - 0.5).long()[:, None] for part in (angle.sin(), angle.cos()))
        row = (torch.arange(h, device=x.device) + down).clamp(0, h - 1)
        column = (torch.arange(w, device=x.device) + right).clamp(0, w - 1)
        place = (row[:, :, None] * w + column[:, None, :]).view(b, 1, h * w).expand(b, c, -1)
        out += weight * flat.gather(2, place).view_as(x)
    return out


def zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of the image, 1 / factor of each side, stretched over all of it."""
    h, w = x.shape[-2:]
    ch, cw = math.ceil(h / factor), math.ceil(w / factor)
    top, left = (h - ch) // 2, (w - cw) // 2
    middle = x[..., top : top + ch, left : left + cw]
    size = (round(ch * factor), round(cw * factor))  # never less than (h, w)
    return F.interpolate(middle, size, mode="bilinear", align_corners=True)[..., :h, :w]


def _extend(x: Tensor, rows: int, columns: int, border: Border) -> Tensor:
    """Pads by this many pixels on each side; unlike F.pad, also by more than the side of the image."""
    h, w = x.shape[-2:]
    return x[..., _places(h, rows, border)[:, None], _places(w, columns, border)]


def _places(side: int, more: int, border: Border) -> Tensor:
    """(side + 2 more,) the pixel that stands at each of -more, ..., side - 1 + more."""
    place = torch.arange(-more, side + more)
    if border == "edge":
        return place.clamp(0, side - 1)
    if border == "mirror":
        place = place % (2 * side)
        return torch.minimum(place, 2 * side - 1 - place)
    place = place % (2 * side - 2)
    return torch.minimum(place, 2 * side - 2 - place)
