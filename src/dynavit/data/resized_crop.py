"""Crops of a batch of images, each with a box of its own, resized: one matrix product along each axis.

Pixels are found as by torch's and Pillow's bicubic filter (a = -1/2), widened where a box shrinks, from inside the box alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

TRIES = 10  # boxes that are drawn before the last one is cut to the image, as in torchvision
NUMBERS = 2 * TRIES + 2  # random numbers for a box
LARGE = 128**2  # pixels of a photograph that is cut by itself
RATIO = (3 / 4, 4 / 3)  # width to height


def random_boxes(numbers: Tensor, image_size: tuple[int, int], scale: tuple[float, float]) -> Tensor:
    """Boxes (b, 4), whole numbers [top, left, height, width], with a part of the area that is uniform between `scale` and sides
    as 3:4 to 4:3, uniform in their logarithm. `numbers`, (b, NUMBERS), are uniform in [0, 1).

    A box that does not fit into the image is drawn again; the last one is cut.
    """
    rows, cols = image_size
    area, ratio = numbers[:, :TRIES], numbers[:, TRIES : 2 * TRIES]
    area = (scale[0] + (scale[1] - scale[0]) * area) * rows * cols
    low, high = torch.tensor(RATIO, dtype=numbers.dtype, device=numbers.device).log()
    ratio = (low + (high - low) * ratio).exp()
    height, width = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (height >= 1) & (height <= rows) & (width >= 1) & (width <= cols)
    fits[:, -1] = True
    first = fits.int().argmax(1, keepdim=True)
    height, width = height.gather(1, first)[:, 0].clamp(1, rows), width.gather(1, first)[:, 0].clamp(1, cols)
    top = (numbers[:, -2] * (rows - height + 1)).floor()
    left = (numbers[:, -1] * (cols - width + 1)).floor()
    return torch.stack([top, left, height, width], 1).long()


def resized_crops(images: Tensor, boxes: Tensor, size: tuple[int, int], mirror: Tensor) -> Tensor:
    """(b, c, h, w) in [0, 1], boxes (b, 4) -> (b, c, *size), mirrored where `mirror`, (b,), says so."""
    if len(images) == 1 and images[0, 0].numel() > LARGE:  # torch's own resize skips the zeros of the matrices below
        top, left, height, width = boxes[0].tolist()
        cut = images[:, :, top : top + height, left : left + width]
        resized = F.interpolate(cut, size, mode="bicubic", antialias=True, align_corners=False)
        return (resized.flip(-1) if bool(mirror[0]) else resized).clamp_(0, 1)
    top, left, height, width = boxes.to(images.dtype).unbind(1)
    rows = bicubic_weights(top, height, images.shape[-2], size[0])
    cols = bicubic_weights(left, width, images.shape[-1], size[1])
    cols = torch.where(mirror[:, None, None], cols.flip(1), cols)
    return (rows[:, None] @ images @ cols[:, None].mT).clamp_(0, 1)


def bicubic_weights(start: Tensor, length: Tensor, pixels: int, size: int) -> Tensor:
    """(b, size, pixels): how much of each pixel goes into each of `size` pixels that cover [start, start + length), (b,)."""
    step = (length / size)[:, None, None]
    out, source = (torch.arange(n, dtype=start.dtype, device=start.device) + 0.5 for n in (size, pixels))
    start, length = start[:, None, None], length[:, None, None]
    distance = (source - start - out[:, None] * step).abs() / step.clamp(min=1)
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    weights = weights * ((source > start) & (source < start + length))
    return weights / weights.sum(-1, keepdim=True)
