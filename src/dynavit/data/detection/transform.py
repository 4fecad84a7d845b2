"""An image with its annotations -> what a detector learns from: resized, perhaps mirrored, normalised, joined with others.

Every step maps image, boxes and masks alike. Boxes are continuous: a box that covers the whole image is (0, 0, width, height).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .record import Record

DIVISOR = 32  # of padded sides: the coarsest stride of the backbones
Sample = tuple[Tensor, dict[str, Any]]  # an image (3, h, w) and its target


@dataclass(frozen=True)
class Preparation:
    """How a stored image becomes an input.

    Attributes:
        short, long: the shorter side becomes `short` pixels (None: stays), unless the longer one would exceed `long`.
        mean, std: of each channel, of pixels in [0, 1].
        interpolation: how pixels are found when an image is resized; masks take the nearest.
    """

    short: int | None
    long: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the resized image.

        >>> Preparation(800, 1333, (), ()).size_of(480, 640), Preparation(800, 1333, (), ()).size_of(1000, 200)
        ((800, 1067), (1333, 267))
        """
        scale = 1.0 if self.short is None else self.short / min(height, width)
        scale = scale if self.long is None else min(scale, self.long / max(height, width))
        return max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))

    def pixels(self, image: Image.Image) -> Tensor:
        """An RGB image -> (3, h, w), resized and normalised."""
        height, width = self.size_of(image.height, image.width)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        return (values - mean) / std


@dataclass(frozen=True)
class WrongSize:
    """In place of a sample whose boxes belong to another image. Not left out like one that cannot be read: such annotations
    are wrong as a whole."""

    message: str


@dataclass(frozen=True)
class Transform:
    """(image, record) -> sample. Half of the samples are mirrored if `flip`, by Python's global generator."""

    preparation: Preparation
    split: str
    masks: bool
    flip: bool = False

    def __call__(self, read: tuple[Image.Image, Record]) -> "Sample | WrongSize":
        image, record = read
        if image.size != (record.width, record.height):
            turned = image.size == (record.height, record.width)
            return WrongSize(
                f"{record.file}: the image has {image.height} x {image.width} pixels (height x width), but its annotations are "
                f"for {record.height} x {record.width}"
                + ("; if EXIF turns it, store it upright: annotations count stored pixels" if turned else "")
            )
        sample = prepared(image, record, self.preparation, masks=self.masks)
        sample[1]["split"] = self.split
        return mirrored(sample) if self.flip and random.random() < 0.5 else sample


def prepared(image: Image.Image, record: Record, how: Preparation, *, masks: bool) -> Sample:
    """Image and target in resized pixels; with `masks`, objects without one are left out."""
    pixels = how.pixels(image)
    height, width = pixels.shape[-2:]
    down, across = height / record.height, width / record.width
    scale = np.array([across, down, across, down])
    usable, corners = record.learnable(masks), record.corners
    found = record.masks(usable) if masks else []
    if masks:  # a polygon may cover nothing
        covering = [bool(mask.any()) for mask in found]
        usable[usable], found = covering, list(compress(found, covering))
    target = {
        "boxes": torch.from_numpy(corners[usable] * scale).float(),
        "labels": torch.from_numpy(record.labels[usable]),
        "masks": resized_masks(found, height, width) if masks else None,
        "crowd_boxes": torch.from_numpy(corners[record.crowd] * scale).float(),
        "image_id": record.id,
        "original_size": (record.height, record.width),
        "scale": (down, across),
        "flipped": False,
    }
    return pixels, target


def resized_masks(masks: Sequence[np.ndarray[Any, np.dtype[np.bool_]]], height: int, width: int) -> Tensor:
    """n masks of one size -> (n, height, width) bool: each pixel takes the one below its centre."""
    if not masks:
        return torch.zeros(0, height, width, dtype=torch.bool)
    before = masks[0].shape
    rows, columns = (_nearest(since, to) for since, to in zip(before, (height, width), strict=True))
    return torch.stack([torch.from_numpy(mask[rows[:, None], columns]) for mask in masks])


def _nearest(before: int, after: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(after,) the pixel of `before` below the centre of each."""
    return ((np.arange(after) + 0.5) * before / after).astype(np.int64)


def mirrored(sample: Sample) -> Sample:
    """Left and right changed places: x becomes width - x."""
    pixels, target = sample
    width = pixels.shape[-1]

    def turned(boxes: Tensor) -> Tensor:
        return torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)

    boxes = {name: turned(target[name]) for name in ("boxes", "crowd_boxes")}
    masks = None if target["masks"] is None else target["masks"].flip(-1)
    return pixels.flip(-1), {**target, **boxes, "masks": masks, "flipped": not target["flipped"]}


def joined_or_wrong(samples: Sequence[Sample | WrongSize]) -> tuple[dict[str, Tensor], list[dict[str, Any]]] | WrongSize:
    """The samples joined, or the first that has the wrong size; whoever asked for them raises the error."""
    wrong = next((sample for sample in samples if isinstance(sample, WrongSize)), None)
    return wrong or joined([sample for sample in samples if not isinstance(sample, WrongSize)])


def joined(samples: Sequence[Sample]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Inputs {"images": (b, 3, H, W), "sizes": (b, 2)} and b targets. Images stand in the top left corner; what is added at
    the right and at the bottom, up to multiples of 32, is 0, the mean colour."""
    sizes = torch.tensor([pixels.shape[-2:] for pixels, _ in samples])
    height, width = (-(-int(side) // DIVISOR) * DIVISOR for side in sizes.amax(0))
    images = torch.zeros(len(samples), samples[0][0].shape[0], height, width)
    for image, (pixels, _) in zip(images, samples, strict=True):
        image[:, : pixels.shape[1], : pixels.shape[2]] = pixels
    return {"images": images, "sizes": sizes}, [target for _, target in samples]
