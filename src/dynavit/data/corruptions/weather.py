"""Weather. Images (b, c, h, w) in [0, 1]; results may lie outside."""

import torch
from torch import Tensor

from .filters import streak, zoom
from .random import Numbers

LUMA = (0.299, 0.587, 0.114)
ICE = (0.82, 0.94, 1.0)  # a little blue
FEATHERS = 24  # crystals of ice on an image


def snow(
    x: Tensor, numbers: Numbers, mean: float, spread: float, size: float, least: float, radius: float, sigma: float, kept: float
) -> Tensor:
    """Flakes are the peaks above `least` of normal noise, zoomed by `size`, and fall in streaks. A second layer is the first
    one turned by 180 degrees. The scene loses colour and dark tones: `kept` of it stays as it is."""
    h, w = x.shape[-2:]
    peaks = zoom(mean + spread * numbers.normal(1, h, w), size)
    flakes = torch.where(peaks < least, 0, peaks).clamp(0, 1)
    flakes = streak(flakes, int(radius), sigma, numbers.angle(-135, -45, stream=1))
    pale = torch.maximum(x, 1.5 * grey(x) + 0.5)
    return kept * x + (1 - kept) * pale + flakes + flakes.flip(2, 3)


def frost(x: Tensor, numbers: Numbers, scene: float, ice: float) -> Tensor:
    """ImageNet-C lays photographs of iced windows over the image; this draws the ice instead."""
    h, w = x.shape[-2:]
    tint = torch.tensor(ICE if x.shape[1] == 3 else (sum(ICE) / 3,), device=x.device, dtype=x.dtype)
    return scene * x + ice * draw_ice(numbers, h, w) * tint[:, None, None]


def fog(x: Tensor, numbers: Numbers, thickness: float, decay: float) -> Tensor:
    """A cloud is added, and the image scaled back to about its range."""
    h, w = x.shape[-2:]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + thickness * plasma(numbers, h, w, decay)) * brightest / (brightest + thickness)


def brightness(x: Tensor, numbers: Numbers, more: float) -> Tensor:
    """Raises the value of HSV, which is the largest channel, up to 1. Hue and saturation stay: all grow in proportion."""
    value = x.amax(1, keepdim=True)
    raised = (value + more).clamp(max=1)
    return torch.where(value > 0, x * raised / value.clamp(min=1 / 255), raised)


def grey(x: Tensor) -> Tensor:
    """(b, 1, h, w)"""
    if x.shape[1] == 1:
        return x
    return (x * torch.tensor(LUMA, device=x.device, dtype=x.dtype)[:, None, None]).sum(1, keepdim=True)


def draw_ice(numbers: Numbers, h: int, w: int) -> Tensor:
    """(b, 1, h, w) in [0, 1]: crystals like feathers that grew from random seeds until they met, over clouds that make them
    thick in places, and uneven.

    Each pixel belongs to the nearest seed. Along a stem through the seed, barbs leave at 60 degrees to both sides, as those of
    ice do. Crystals are larger in larger images. Mean and spread are about those of ImageNet-C's photographs.
    """
    row, column, turn, size = numbers.uniform(4, FEATHERS, 1, 1, stream=1).unbind(1)
    down = torch.arange(h, device=row.device)[:, None] - row * h
    right = torch.arange(w, device=row.device) - column * w
    nearest = (down.square() + right.square()).argmin(1, keepdim=True)
    down, right, turn, size = (part.expand(-1, -1, h, w).gather(1, nearest) for part in (down, right, turn, 0.5 + size))
    turn = 2 * torch.pi * turn
    along, across = right * turn.cos() + down * turn.sin(), (down * turn.cos() - right * turn.sin()).abs()
    wave = size * max(3.0, min(h, w) / 24)  # pixels from barb to barb
    thick, rough = plasma(numbers, h, w, decay=1.7, stream=2), plasma(numbers, h, w, decay=1.3, stream=3)
    barbs = torch.cos(2 * torch.pi * ((along - across / 3**0.5) / wave + 2 * rough))
    stem = torch.exp(-2 * across / wave)
    return (0.1 + 0.5 * thick + 0.4 * rough + 0.2 * barbs * rough + 0.2 * stem).clamp(0, 1)


def plasma(numbers: Numbers, h: int, w: int, decay: float, stream: int = 0) -> Tensor:
    """(b, 1, h, w), a cloud by the diamond-square algorithm on a torus, from 0 to 1 over the whole torus.

    The middle of each square is the mean of its corners plus noise, then likewise that of each diamond, then squares of half
    the size follow. Each time the noise shrinks by decay²."""
    side = 1 << (max(h, w) - 1).bit_length()
    cloud = 2 * numbers.uniform(side, side, stream=stream) - 1  # the noise, replaced by heights step by step
    cloud[:, 0, 0] = 0
    step, amplitude = side, 1.0
    while step > 1:
        half = step // 2
        corners, middles = cloud[:, ::step, ::step], cloud[:, half::step, half::step]
        rights, belows = cloud[:, ::step, half::step], cloud[:, half::step, ::step]
        columns, rows = corners + corners.roll(-1, 1), corners + corners.roll(-1, 2)
        middles.mul_(amplitude).add_((columns + columns.roll(-1, 2)) / 4)
        rights.mul_(amplitude).add_((rows + middles + middles.roll(1, 1)) / 4)
        belows.mul_(amplitude).add_((columns + middles + middles.roll(1, 2)) / 4)
        step, amplitude = half, amplitude / decay**2
    low, high = cloud.amin((1, 2), keepdim=True), cloud.amax((1, 2), keepdim=True)
    return ((cloud - low) / (high - low))[:, None, :h, :w]
