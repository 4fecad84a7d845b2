"""Photographs as a person sees them: cameras store pixels as the sensor lay, and write into EXIF how to turn them.

One function for training, evaluation, prediction and bundles, so that a model never sees the same photograph in two ways.
"""

from PIL import Image, ImageOps

ORIENTATION = 0x0112  # of EXIF: 1 upright, 5 to 8 on its side


def upright(image: Image.Image) -> Image.Image:
    """The image turned and mirrored as its EXIF data say; as it is where they say nothing or cannot be read."""
    try:
        # Pillow would copy an image that stands upright.
        return ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image
    except Exception:  # broken EXIF data make Pillow stumble in any way, and the pixels may still be good
        return image


def lies_on_its_side(image: Image.Image) -> bool:
    """Whether `upright` swaps width and height."""
    try:
        return image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
    except Exception:
        return False
