"""Image files as RGB."""

import os
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from PIL import Image

from ..common.pictures import open_picture
from ..common.upright import lies_on_its_side, upright

Size = tuple[int, int]  # width, height, as Pillow counts

_SIXTEEN_BIT = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # I has 32 bits, but 16-bit files are what comes as such


def read_image(
    file: str | os.PathLike[str] | BinaryIO,
    name: str | None = None,
    reduction: Callable[[Size], int] | None = None,
    *,
    as_stored: bool = False,
) -> Image.Image:
    """An RGB image, turned as EXIF says. Transparency is dropped, as torchvision and timm do.

    Args:
        file: a path, or an open file.
        name: of an image inside something else, for messages.
        reduction: says of a JPEG file of (width, height), as seen, by how much smaller it may be decoded: 1, 2, 4 or 8. Of one
            that was, `info["full_size"]` is that (width, height).
        as_stored: do not turn it: boxes and masks are counted in stored pixels.

    Raises:
        ValueError: it cannot be read; the message names `file`, or `name` for an image inside something else.
    """
    try:
        with open_picture(file) as image:
            if as_stored:
                return in_rgb(image)
            if reduction is None or image.format != "JPEG":
                return as_rgb(image)
            return _drafted(image, reduction)
    except Exception as error:  # a broken file makes decoders stumble in any way: SyntaxError, struct.error, zlib.error ...
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise ValueError(f"cannot read image {name or file}: {reason}") from error


def _drafted(image: Image.Image, reduction: Callable[[Size], int]) -> Image.Image:
    full = image.size[::-1] if lies_on_its_side(image) else image.size
    times = reduction(full)
    if times > 1:
        image.draft(None, (image.width // times, image.height // times))
    small = as_rgb(image)
    if times > 1:
        small.info["full_size"] = full
    return small


def as_rgb(image: Image.Image) -> Image.Image:
    return in_rgb(upright(image))  # in this order: a conversion may lose the EXIF data


def in_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BIT:  # PIL would clip at 255 instead of scaling
        image = Image.fromarray((np.asarray(image) / 257).round().clip(0, 255).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range; convert it to 8 or 16 bits")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # PIL warns about the direct way
    if image.mode != "RGB":
        return image.convert("RGB")
    image.load()  # the file may be closed behind it
    return image
