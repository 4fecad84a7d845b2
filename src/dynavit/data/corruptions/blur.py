"""Blurs. Images (b, c, h, w) in [0, 1]; results may lie outside."""

import torch
from torch import Tensor

from .filters import convolve, gaussian, smooth, streak, zoom
from .random import Numbers


def defocus_blur(x: Tensor, numbers: Numbers, radius: float, sigma: float) -> Tensor:
    """A lens out of focus: a disk, its edge softened by a narrow Gaussian."""
    reach = max(8, int(radius))
    place = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (place.square()[:, None] + place.square() <= radius**2).double()
    soft = gaussian(1 if radius <= 8 else 2, sigma)
    kernel = convolve(disk / disk.sum(), soft[:, None] * soft, "mirror_without_edge")
    return convolve(x, kernel, "mirror_without_edge")


def glass_blur(x: Tensor, numbers: Numbers, sigma: float, reach: float, rounds: float) -> Tensor:
    """Frosted glass: light arrives from a neighbour up to `reach` pixels away, between two Gaussian blurs."""
    x = smooth(x, (sigma, sigma))
    for stream in range(int(rounds)):
        x = scatter(x, numbers, int(reach), stream)
    return smooth(x, (sigma, sigma))


def motion_blur(x: Tensor, numbers: Numbers, radius: float, sigma: float) -> Tensor:
    return streak(x, int(radius), sigma, numbers.angle(-45, 45))


def zoom_blur(x: Tensor, numbers: Numbers, step: float, count: float) -> Tensor:
    """The mean of the image and of zooms by 1, 1 + step, ..."""
    total = x.clone()
    for i in range(int(count)):
        total += zoom(x, 1 + step * i)
    return total / (count + 1)


def scatter(x: Tensor, numbers: Numbers, reach: int, stream: int) -> Tensor:
    """From the last pixel to the first, each takes the value that a random neighbour has by then. Pixels near the edge stay.

    ImageNet-C means to swap the two, but its assignment reads a value that it has just overwritten. We follow what it does.

    A neighbour that comes later in the image has been replaced by then, so values travel along chains of pixels. Each pixel
    points to where its value comes from, and following all pointers twice as far each time finds the ends of all chains.
    """
    b, c, h, w = x.shape
    row, column = torch.arange(h, device=x.device)[:, None], torch.arange(w, device=x.device)
    inside = (row > reach) & (row <= h - reach) & (column > reach) & (column <= w - reach)
    down, right = (numbers.uniform(2, h, w, stream=stream) * 2 * reach).long().sub(reach).mul(inside).unbind(1)
    here = (row * w + column).view(1, h * w).expand(b, -1)
    there = ((row + down) * w + column + right).view(b, h * w)
    # 0 ... h w - 1 are the pixels after the round, and the same plus h w those before it, which are the ends
    pointer = torch.cat([torch.where(there > here, there, there + h * w), here + h * w], 1)
    while (pointer < h * w).any():
        pointer = pointer.gather(1, pointer)
    source = pointer[:, None, : h * w] - h * w
    return x.flatten(2).gather(2, source.expand(b, c, -1)).view_as(x)
