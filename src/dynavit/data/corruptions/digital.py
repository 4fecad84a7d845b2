"""Effects of cameras, files and screens. Images (b, c, h, w) in [0, 1]; results may lie outside."""

from io import BytesIO
from itertools import pairwise

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ...common.pictures import open_picture
from .filters import smooth
from .random import Numbers


def contrast(x: Tensor, numbers: Numbers, kept: float) -> Tensor:
    """Towards the mean of each channel."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * kept + mean


def elastic_transform(x: Tensor, numbers: Numbers, amount: float, smoothness: float) -> Tensor:
    """Each pixel is taken from up to `amount` of the height away, in a direction and by a distance that are smoothed over
    `smoothness` of the sides. Beyond the edge lies the mirror image."""
    h, w = x.shape[-2:]
    shift = amount * h * (2 * numbers.uniform(2, h, w) - 1)
    shift = smooth(shift, (smoothness * h, smoothness * w), "mirror", cut=3.0)
    row, column = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
    # grid_sample counts from -1 to 1 between the outer edges of the image, columns first
    places = torch.stack([(2 * (column + shift[:, 1]) + 1) / w - 1, (2 * (row + shift[:, 0]) + 1) / h - 1], -1)
    return F.grid_sample(x, places, mode="bilinear", padding_mode="reflection", align_corners=False)


def pixelate(x: Tensor, numbers: Numbers, part: float) -> Tensor:
    """Boxes averaged to `part` of the sides, and enlarged again without interpolation."""
    h, w = x.shape[-2:]
    rows, columns = int(h * part), int(w * part)
    x = torch.stack([x[..., box].mean(-1) for box in _boxes(w, columns)], -1)
    x = torch.stack([x[..., box, :].mean(-2) for box in _boxes(h, rows)], -2)
    x = (x * 255).round() / 255  # the small image is one of bytes
    return x[..., _nearest(rows, h)[:, None], _nearest(columns, w)]


def jpeg_compression(x: Tensor, numbers: Numbers, quality: float) -> Tensor:
    """By Pillow's codec itself, image by image."""
    images = (x * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    pixels = [_through_jpeg(image, int(quality)) for image in images]
    return torch.from_numpy(np.stack(pixels)).to(x).div(255).view(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)


def _through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    file = BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(file, "JPEG", quality=quality)
    return np.asarray(open_picture(file))


def _boxes(side: int, parts: int) -> list[slice]:
    """The pixels whose centres lie in each of `parts` equal parts of a side."""
    ends = [int(side / parts * i + 0.5) for i in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def _nearest(small: int, large: int) -> Tensor:
    """(large,) the one of `small` parts that the centre of each of `large` pixels lies in."""
    return (2 * torch.arange(large) + 1) * small // (2 * large)
