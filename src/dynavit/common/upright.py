"""Photographs as a person sees them: cameras store pixels as the sensor lay, and write into EXIF how to turn them.

One function for training, evaluation, prediction and bundles, so that a model never sees the same photograph in two ways.
"""

from PIL import Image, ImageOps


def upright(image: Image.Image) -> Image.Image:
    """The image turned and mirrored as its EXIF data say; as it is where they say nothing or cannot be read."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken EXIF data make Pillow stumble in any way, and the pixels may still be good
        return image
