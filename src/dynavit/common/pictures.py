"""The one place that opens image files.

Pillow goes by a file's content, whatever its name says, and knows formats that it hands to other programs: an EPS file named
.png would start Ghostscript on whatever somebody wrote into it. So only formats are tried that are decoded in this process.
"""

import os
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM")  # PPM: also PGM and PBM
MOST_PIXELS = 178_956_970  # half a gigabyte as RGB; Pillow's own limit, which a program may have switched off


def open_picture(file: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    """An image whose pixels are read when they are needed; to be closed.

    Raises:
        ValueError: no regular file, of another format, or so large that it can only be meant to fill the memory.
        Exception: whatever else a broken file makes decoders stumble with.
    """
    if isinstance(file, str | os.PathLike) and Path(file).exists() and not Path(file).is_file():
        raise ValueError("it is not a regular file")  # opening a pipe would wait for somebody to write
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError(f"its content is none of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"it has more than {MOST_PIXELS} pixels; make it smaller") from error
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise ValueError(f"it has {image.width} x {image.height} pixels, more than {MOST_PIXELS}; make it smaller")
    return image
