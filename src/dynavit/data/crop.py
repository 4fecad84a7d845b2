"""A random crop of a photograph: timm's boxes, cut out of pixels that were decoded no larger than needed.

JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the time. The box is drawn from the size that the file's
header tells, so it does not depend on that; then pixels are decoded as small as leaves the box at least the wanted size.
"""

import torch
from PIL import Image

from ..common.torchvision_shim import ensure_torchvision

ensure_torchvision()  # before the first import of timm

from timm.data.transforms import RandomResizedCropAndInterpolation  # noqa: E402

REDUCTIONS = (8, 4, 2)  # of libjpeg, largest first
FULL_SIZE = "full_size"  # key in `Image.info`: (width, height) of an image that was decoded smaller

Box = tuple[int, int, int, int]  # top, left, height, width


class RandomCrop:
    """Image -> random crop of (height, width) `size`, see Inception: 8 to 100 % of the area, sides as 3:4 to 4:3.

    Draws from Python's generator exactly what timm's `RandomResizedCropAndInterpolation` draws.
    """

    def __init__(self, size: tuple[int, int], like: RandomResizedCropAndInterpolation, interpolation: str) -> None:
        self.size, self.scale, self.ratio, self.interpolation = size, like.scale, like.ratio, interpolation

    def box(self, full: tuple[int, int]) -> Box:
        """Draw a box in an image of (width, height)."""
        image = torch.empty(full[1], full[0], device="meta")  # timm asks an image for its size
        top, left, height, width = RandomResizedCropAndInterpolation.get_params(image, self.scale, self.ratio)
        return top, left, height, width

    def reduction(self, full: tuple[int, int]) -> int:
        """Draw a box, and say by how much an image of (width, height) may be decoded smaller for it: 1, 2, 4 or 8."""
        _, _, height, width = self.box(full)
        enough = (n for n in REDUCTIONS if height >= n * self.size[0] and width >= n * self.size[1])
        return next(enough, 1)

    def __call__(self, image: Image.Image) -> Image.Image:
        full = image.info.get(FULL_SIZE, image.size)
        top, left, height, width = self.box(full)
        size, how = self.size[::-1], Image.Resampling[self.interpolation.upper()]
        if image.size == full:  # as timm does, to the bit
            return image.crop((left, top, left + width, top + height)).resize(size, how)
        across, down = image.width / full[0], image.height / full[1]  # about 1 / reduction
        edges = (left * across, top * down, (left + width) * across, (top + height) * down)
        return image.resize(size, how, edges)  # Pillow cuts between pixels
