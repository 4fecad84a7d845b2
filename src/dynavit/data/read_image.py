"""Image files as RGB."""

import os
from typing import BinaryIO

import numpy as np
from PIL import Image

from ..common.pictures import open_picture
from ..common.upright import upright

_SIXTEEN_BIT = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # I has 32 bits, but 16-bit files are what comes as such


def read_image(file: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> Image.Image:
    """An RGB image, turned as EXIF says. Transparency is dropped, as torchvision and timm do.

    Raises:
        ValueError: it cannot be read; the message names `file`, or `name` for an image inside something else.
    """
    try:
        with open_picture(file) as image:
            return as_rgb(image)
    except Exception as error:  # a broken file makes decoders stumble in any way: SyntaxError, struct.error, zlib.error ...
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise ValueError(f"cannot read image {name or file}: {reason}") from error


def as_rgb(image: Image.Image) -> Image.Image:
    image = upright(image)  # first: a conversion may lose the EXIF data
    if image.mode in _SIXTEEN_BIT:  # PIL would clip at 255 instead of scaling
        image = Image.fromarray((np.asarray(image) / 257).round().clip(0, 255).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range; convert it to 8 or 16 bits")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # PIL warns about the direct way
    return image.convert("RGB")
