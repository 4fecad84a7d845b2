"""Images in memory: bytes as they were stored, which get their size on the way to the model.

Images that should grow by less than half their side (28 to 32) get a black margin, so that no pixel is invented; larger growth
is bilinear, shrinking averages areas. Bytes stay at the stored size: CIFAR at 224 pixels would be 9 GB.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def canvas_size(stored: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """The size after padding: the wanted one if padding is enough to get there, otherwise the stored one."""
    padding_is_enough = all(side <= goal < 1.5 * side for side, goal in zip(stored, wanted, strict=True))
    return wanted if padding_is_enough else stored


def place(images: Tensor, canvas: tuple[int, int], down: Tensor, right: Tensor, mirror: Tensor) -> Tensor:
    """(b, c, h, w) onto the middle of a black canvas (b, c, *canvas), each moved `down` and `right` by so many pixels, (b,),
    and mirrored where `mirror`, (b,), says so."""
    (height, width), (rows, cols) = images.shape[-2:], canvas
    # The source of each pixel of the canvas: everything is one gather, and no padded copy of the images is needed.
    row = torch.arange(rows, device=images.device) - (rows - height) // 2 - down[:, None]
    col = torch.arange(cols, device=images.device) - (cols - width) // 2 - right[:, None]
    col = torch.where(mirror[:, None], width - 1 - col, col)
    inside = ((row >= 0) & (row < height))[:, :, None] & ((col >= 0) & (col < width))[:, None, :]
    source = row.clamp(0, height - 1)[:, :, None] * width + col.clamp(0, width - 1)[:, None, :]
    flat = source.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, flat).unflatten(2, canvas) * inside[:, None]


def pad(images: Tensor, canvas: tuple[int, int]) -> Tensor:
    """`place` without moving anything."""
    (height, width), (rows, cols) = images.shape[-2:], canvas
    top, left = (rows - height) // 2, (cols - width) // 2
    return F.pad(images, (left, cols - width - left, top, rows - height - top))


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes to floating-point numbers of the type of `mean`, (c,); pixels in [0, 1] would have this mean and deviation."""
    scale = 1 / (255 * std)
    return images.to(mean.dtype).mul_(scale[:, None, None]).sub_((mean / std)[:, None, None])


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Floating-point images to another size."""
    if images.shape[-2:] == size:
        return images
    if size[0] * size[1] < images.shape[-2] * images.shape[-1]:
        return F.interpolate(images, size, mode="area")
    return F.interpolate(images, size, mode="bilinear", align_corners=False)


def erase(images: Tensor, numbers: Tensor, probability: float) -> Tensor:
    """Random erasing (Zhong et al., AAAI 2020) of normalised images: with this probability a rectangle becomes 0, the mean
    colour. It covers 2 to 33 % of the image with sides in a ratio from 0.3 to 1 / 0.3, cut where it is longer than the image.

    `numbers`, (b, 5), are uniform in [0, 1).
    """
    rows, cols = images.shape[-2:]
    chosen, area, ratio, down, right = numbers.unbind(1)
    area = (0.02 + (1 / 3 - 0.02) * area) * rows * cols
    ratio = 0.3 ** (1 - 2 * ratio)
    height = (area * ratio).sqrt().round().clamp(1, rows)
    width = (area / ratio).sqrt().round().clamp(1, cols)
    top, left = (down * (rows - height + 1)).floor(), (right * (cols - width + 1)).floor()
    row, col = torch.arange(rows, device=images.device), torch.arange(cols, device=images.device)
    in_rows = (row >= top[:, None]) & (row < (top + height)[:, None])
    in_cols = (col >= left[:, None]) & (col < (left + width)[:, None])
    box = in_rows[:, :, None] & in_cols[:, None, :] & (chosen < probability)[:, None, None]
    return images * ~box[:, None]  # three times as fast as masked_fill
