"""From an image file to a model's input with PIL and numpy alone, as the training room's evaluation does it.

The description is the one that a run stores, see `data.preprocess`; tests hold the two to the same numbers.
"""

from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...common.pictures import open_picture
from ...common.upright import upright

Pixels = NDArray[np.float32]
Size = tuple[int, int]  # height, width

_SIXTEEN_BIT = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # I has 32 bits, but 16-bit files are what comes as such


def prepare(path: str | PathLike[str], description: dict[str, Any]) -> Pixels:
    """(channels, height, width) of one image file."""
    return normalised(stored_pixels(read_rgb(path), description)[None], description)[0]


def stored_pixels(image: Image.Image, description: dict[str, Any]) -> NDArray[np.uint8]:
    """(channels, height, width) of an RGB image, cut and resized: a quarter of the memory of the model's input."""
    image = image.convert("L") if len(description["mean"]) == 1 else image
    if description["kind"] == "files":
        size = _image_size(description)
        image = _cropped(_resized(image, size, description["crop_pct"], description["interpolation"]), size)
    else:
        height, width = description["stored_size"]
        image = image.resize((width, height))
    pixels = np.asarray(image)
    return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1))


def normalised(pixels: NDArray[np.uint8], description: dict[str, Any]) -> Pixels:
    """The model's input, (batch, channels, height, width), from a batch of `stored_pixels`."""
    mean, std = (np.array(description[name], np.float32)[:, None, None] for name in ("mean", "std"))
    values = pixels.astype(np.float32)
    if description["kind"] == "files":
        return (values / np.float32(255) - mean) / std
    size = _image_size(description)
    return _scaled(_padded(values, size) * (1 / (255 * std)) - mean / std, size)


def read_rgb(path: str | PathLike[str]) -> Image.Image:
    """An RGB image, turned as EXIF says; transparency is dropped."""
    try:
        with open_picture(path) as opened:
            return as_rgb(opened)
    except Exception as error:  # a broken file makes decoders stumble in any way
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise ValueError(f"cannot read image {path}: {reason}") from error


def as_rgb(opened: Image.Image) -> Image.Image:
    """An opened image in RGB, turned as EXIF says; transparency is dropped."""
    image = upright(opened)
    if image.mode in _SIXTEEN_BIT:  # PIL would clip at 255 instead of scaling
        return Image.fromarray((np.asarray(image) / 257).round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range; convert it to 8 or 16 bits")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA").convert("RGB")  # PIL warns about the direct way
    return image.convert("RGB")


def _image_size(description: dict[str, Any]) -> Size:
    return int(description["image_size"][0]), int(description["image_size"][1])


def _resized(image: Image.Image, size: Size, crop_pct: float, interpolation: str) -> Image.Image:
    """So that `size` covers `crop_pct` of it. For squares the longer side is cut to whole pixels, otherwise rounded."""
    height, width = (int(side / crop_pct) for side in size)
    if height == width:
        short, long = sorted(image.size)
        new_long = int(height * long / short)
        new = (height, new_long) if image.width <= image.height else (new_long, height)
    else:
        ratio = min(image.height / height, image.width / width)
        new = (round(image.width / ratio), round(image.height / ratio))
    return image if new == image.size else image.resize(new, Image.Resampling[interpolation.upper()])


def _cropped(image: Image.Image, size: Size) -> Image.Image:
    height, width = size
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _padded(pixels: Pixels, size: Size) -> Pixels:
    """Images that grow by less than half their side get a black margin."""
    stored = pixels.shape[-2:]
    if not all(side <= goal < 1.5 * side for side, goal in zip(stored, size, strict=True)):
        return pixels
    margins = [((goal - side) // 2, goal - side - (goal - side) // 2) for side, goal in zip(stored, size, strict=True)]
    return np.pad(pixels, [*[(0, 0)] * (pixels.ndim - 2), *margins])


def _scaled(pixels: Pixels, size: Size) -> Pixels:
    """Shrinking averages areas, growing is bilinear; both are one matrix for each axis."""
    if pixels.shape[-2:] == size:
        return pixels
    weights = _area if size[0] * size[1] < pixels.shape[-2] * pixels.shape[-1] else _bilinear
    rows, cols = (weights(old, new) for old, new in zip(pixels.shape[-2:], size, strict=True))
    return (rows @ pixels @ cols.T).astype(np.float32)


def _area(old: int, new: int) -> NDArray[np.float64]:
    """(new, old): each new pixel is the mean of the old ones it touches."""
    matrix = np.zeros((new, old))
    for at in range(new):
        first, last = at * old // new, -(-(at + 1) * old // new)
        matrix[at, first:last] = 1 / (last - first)
    return matrix


def _bilinear(old: int, new: int) -> NDArray[np.float64]:
    """(new, old): between the two nearest centres."""
    matrix = np.zeros((new, old))
    for at in range(new):
        centre = max((at + 0.5) * old / new - 0.5, 0.0)
        low = min(int(centre), old - 1)
        share = centre - low if low + 1 < old else 0.0
        matrix[at, low] += 1 - share
        matrix[at, min(low + 1, old - 1)] += share
    return matrix
