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


def elastic_transform(x: Tensor, numbers: Numbers, amount: float, smoothness: float, corners: float = 0.0) -> Tensor:
    """Each pixel is taken from up to `amount` of the height away, in a direction and by a distance that are smoothed over
    `smoothness` of the sides. Beyond the edge lies the mirror image.

    Before that comes a random affine map, if it moves three `corners` of a square in the middle, by up to this part of the
    height in each direction. Beyond the edge of this one lies the mirror image without the edge itself.
    """
    h, w = x.shape[-2:]
    if corners:
        x = _moved(x, numbers, corners * h)
    shift = amount * h * (2 * numbers.uniform(2, h, w) - 1)
    shift = smooth(shift, (smoothness * h, smoothness * w), "mirror", cut=3.0)
    row, column = torch.meshgrid(torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij")
    # grid_sample counts from -1 to 1 between the outer edges of the image, columns first
    places = torch.stack([(2 * (column + shift[:, 1]) + 1) / w - 1, (2 * (row + shift[:, 0]) + 1) / h - 1], -1)
    return F.grid_sample(x, places, mode="bilinear", padding_mode="reflection", align_corners=False)


def _moved(x: Tensor, numbers: Numbers, most: float) -> Tensor:
    """By the affine map that moves three corners of a square, two thirds of the shorter side wide, by up to `most` pixels."""
    h, w = x.shape[-2:]
    row, column, reach = h // 2, w // 2, min(h, w) // 3
    corners = [[row + reach, column + reach], [row - reach, column + reach], [row - reach, column - reach]]
    before = torch.tensor(corners, device=x.device, dtype=x.dtype).expand(len(x), 3, 2)
    after = before + most * (2 * numbers.uniform(3, 2, stream=1) - 1)
    # what stands at p after the map comes from where (p, 1) @ back points: (3, 2) for each image
    back = torch.linalg.solve(F.pad(after, (0, 1), value=1.0), before)
    places = torch.cartesian_prod(*(torch.arange(side, device=x.device, dtype=x.dtype) for side in (h, w)))
    rows, columns = (F.pad(places, (0, 1), value=1.0) @ back).view(-1, h, w, 2).unbind(-1)
    # grid_sample counts from -1 to 1 between the centres of the outer pixels here, columns first
    grid = torch.stack([2 * columns / (w - 1) - 1, 2 * rows / (h - 1) - 1], -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=True)


def pixelate(x: Tensor, numbers: Numbers, part: float) -> Tensor:
    """Boxes averaged to `part` of the sides, and enlarged again without interpolation."""
    h, w = x.shape[-2:]
    rows, columns = int(h * part), int(w * part)
    x = torch.stack([x[..., box].mean(-1) for box in _boxes(w, columns)], -1)
    x = torch.stack([x[..., box, :].mean(-2) for box in _boxes(h, rows)], -2)
    x = (x * 255).round() / 255  # the small image is one of bytes
    return x[..., _nearest(rows, h)[:, None], _nearest(columns, w)]


def jpeg_compression(x: Tensor, numbers: Numbers, quality: float) -> Tensor:
    return through_jpeg((x * 255).round().byte(), int(quality)).to(x) / 255


def through_jpeg(images: Tensor, quality: int) -> Tensor:
    """(b, c, h, w) uint8 to the same, stored and read by Pillow's codec, image by image."""
    pixels = [_through_jpeg(image, quality) for image in images.permute(0, 2, 3, 1).cpu().numpy()]
    return torch.from_numpy(np.stack(pixels)).to(images).view(len(images), *images.shape[2:], -1).permute(0, 3, 1, 2)


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
