"""Made-up pictures of coloured shapes with exact boxes and masks: nothing to download, and as many as one likes.

A picture is a function of (seed, split, number) alone. Shapes may hide a part of each other, and then masks and boxes are those
of what can be seen. The colour of a shape says nothing about its class.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ...common.fits import AtLeastOne, Count, NotNegative, Positive, Range, check_fits
from ...common.registry import nearest_match_error
from ..config import DataConfig
from ..sampling import derive_seed
from .dataset import EVAL_BATCH, DetectionData, DetectionSplit
from .files import check_config, limit, preparation
from .penn_fudan import extent
from .record import Record
from .rle import Mask, encode

SPLITS = ("train", "val", "test")
IDS_OF_A_SPLIT = 1_000_000  # so that no two images have the same id
SMALLEST_SIDE = 32
TRIES = 20  # to find a place for a shape
SEEN = 0.6  # of a shape at least, where others hide it
FEWEST_PIXELS = 12  # that can be seen of a shape

Numbers = NDArray[np.float64]

# ---- The shapes: which points (u, v) of the plane are inside, all of them within the unit circle


def _disc(u: Numbers, v: Numbers) -> Mask:
    return u * u + v * v <= 1


def _square(u: Numbers, v: Numbers) -> Mask:
    return np.maximum(abs(u), abs(v)) <= 0.8


def _triangle(u: Numbers, v: Numbers) -> Mask:
    slanted = np.sqrt(3) / 2 * abs(u) - v / 2
    return (v <= 0.6) & (slanted <= 0.6)


def _ring(u: Numbers, v: Numbers) -> Mask:
    far = u * u + v * v
    return (far >= 0.5**2) & (far <= 1)


def _cross(u: Numbers, v: Numbers) -> Mask:
    near, far = np.minimum(abs(u), abs(v)), np.maximum(abs(u), abs(v))
    return (near <= 0.28) & (far <= 0.95)


def _star(u: Numbers, v: Numbers) -> Mask:
    """Five points: one tenth of it, between a point and the notch beside it, is a triangle."""
    tenth = np.pi / 5
    from_point = abs((np.arctan2(v, u) + tenth) % (2 * tenth) - tenth)
    x, y = np.hypot(u, v) * np.cos(from_point), np.hypot(u, v) * np.sin(from_point)
    notch_x, notch_y = 0.45 * np.cos(tenth), 0.45 * np.sin(tenth)
    return (1 - x) * notch_y >= y * (1 - notch_x)


KINDS: dict[str, Callable[[Numbers, Numbers], Mask]] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "ring": _ring,
    "star": _star,
}


@dataclass(frozen=True)
class Scene:
    """What pictures look like.

    Attributes:
        seed: of all of them.
        size: side of a picture in pixels.
        vary: sides differ by up to the factor 1 + vary in either direction, height and width by themselves; 0: all are equal.
        kinds: how many kinds of shapes there are, the first of disc, square, triangle, cross, ring, star.
        fewest, most: shapes in a picture; some find no place.
        smallest, largest: diameters in pixels; large ones are rarer.
        noise: deviation of each pixel, of 255.
    """

    seed: Count = 0
    size: Annotated[int, Range(least=SMALLEST_SIDE, most=4096)] = 128
    vary: NotNegative = 0.0
    kinds: Annotated[int, Range(least=1, most=len(KINDS))] = 4
    fewest: Count = 1
    most: Count = 4
    smallest: Positive = 16
    largest: Positive = 64
    noise: NotNegative = 8.0

    def __post_init__(self) -> None:
        check_fits(Scene, self, "loading.options")
        for low, high in (("fewest", "most"), ("smallest", "largest")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"loading.options.{low}={getattr(self, low)} is more than {high}={getattr(self, high)}")

    def size_of(self, split: str, number: int) -> tuple[int, int]:
        """(height, width)"""
        if not self.vary:
            return self.size, self.size
        exponents = self._generator(split, number, 0).uniform(-1, 1, 2)
        height, width = (max(SMALLEST_SIDE, round(self.size * (1 + self.vary) ** exponent)) for exponent in exponents)
        return height, width

    def draw(self, split: str, number: int) -> tuple[NDArray[np.uint8], list[int], list[Mask]]:
        """A picture (h, w, 3), and of each shape its class and the mask (h, w) of what can be seen."""
        height, width = self.size_of(split, number)
        random = self._generator(split, number, 1)
        picture, owner = _ground(random, height, width), np.full((height, width), -1)
        labels: list[int] = []
        whole: list[int] = []  # pixels of each shape before others hid it
        for _ in range(random.integers(self.fewest, self.most + 1)):
            label = int(random.integers(self.kinds))
            for _ in range(TRIES):
                mask = self._place(random, label, height, width)
                left = np.bincount(owner[(owner >= 0) & ~mask], minlength=len(labels))
                if mask.sum() >= FEWEST_PIXELS and (left >= SEEN * np.array(whole)).all():
                    owner[mask] = len(labels)
                    labels.append(label)
                    whole.append(int(mask.sum()))
                    picture[mask] = _paint(random, height, width)[mask]
                    break
        picture += random.normal(0, self.noise, picture.shape)
        return picture.clip(0, 255).round().astype(np.uint8), labels, [owner == place for place in range(len(labels))]

    def _place(self, random: np.random.Generator, label: int, height: int, width: int) -> Mask:
        """A shape somewhere: turned, a little flattened, perhaps cut off at the border."""
        largest = min(self.largest, 0.9 * min(height, width))
        radius = 0.5 * float(np.exp(random.uniform(np.log(min(self.smallest, largest)), np.log(largest))))
        x, y = (random.uniform(0.7 * radius, side - 0.7 * radius) for side in (width, height))
        turn, flat = random.uniform(0, 2 * np.pi), random.uniform(0.75, 1)
        across, down = np.meshgrid(np.arange(width) + 0.5 - x, np.arange(height) + 0.5 - y)
        u = (np.cos(turn) * across + np.sin(turn) * down) / radius
        v = (np.cos(turn) * down - np.sin(turn) * across) / (radius * flat)
        return list(KINDS.values())[label](u, v)

    def _generator(self, split: str, number: int, use: int) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, SPLITS.index(split), number, use))


def _ground(random: np.random.Generator, height: int, width: int) -> Numbers:
    """(h, w, 3) in dull colours, with soft blotches."""
    coarse = random.uniform(-1, 1, (5, 5))
    soft = np.asarray(Image.fromarray(coarse.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC), np.float64)
    return random.uniform(70, 180) + random.uniform(-25, 25, 3) + 30 * soft[..., None]


def _paint(random: np.random.Generator, height: int, width: int) -> Numbers:
    """(h, w, 3) of a bright colour, lighter on one side."""
    light = np.linspace(0.85, 1.1, width)[None, :, None]
    bright = np.array([random.uniform(190, 255), random.uniform(60, 220), random.uniform(0, 60)])
    return np.broadcast_to(random.permutation(bright) * light, (height, width, 3))


@dataclass(frozen=True)
class Shapes:
    """Keys are (split, number)."""

    scene: Scene
    quick: ClassVar[bool] = True

    def record(self, key: tuple[str, int]) -> Record:
        return self._drawn(key)[1]

    def read(self, key: tuple[str, int]) -> tuple[Image.Image, Record]:
        picture, record = self._drawn(key)
        return Image.fromarray(picture), record

    def _drawn(self, key: tuple[str, int]) -> tuple[NDArray[np.uint8], Record]:
        split, number = key
        picture, labels, masks = self.scene.draw(split, number)
        name = f"{split}/{number:06d}.png"
        return picture, Record(
            SPLITS.index(split) * IDS_OF_A_SPLIT + number + 1,
            name,
            name,
            picture.shape[0],
            picture.shape[1],
            np.array([extent(mask) for mask in masks], np.float64).reshape(-1, 4),
            np.array(labels, np.int64),
            np.array([mask.sum() for mask in masks], np.float64),
            np.zeros(len(masks), bool),
            [encode(mask) for mask in masks],
        )


def open_shapes(
    data_dir: Path | None,
    config: DataConfig,
    *,
    train: AtLeastOne = 600,
    val: Count = 100,
    test: Count = 200,
    short: int | None = None,
    long: int | None = None,
    masks: bool = True,
    eval_batch: int = EVAL_BATCH,
    **scene: Any,
) -> DetectionData:
    """Coloured shapes with boxes and masks, made up on the spot

    Args:
        train, val, test: pictures of each split; they do not depend on each other.
        short, long: see `transform.Preparation`; pictures keep their size if not given.
        masks: deliver masks too.
        eval_batch: pictures at a time in evaluation.
        scene: what pictures look like, see `Scene`.
    """
    check_config("shapes", config)
    if data_dir is not None:
        raise ValueError("shapes are made up and lie in no folder; leave --data-dir out")
    looks = _scene(scene)
    counts = {"train": train, "val": val, "test": test}
    check_fits(dict[str, Count], counts, "loading.options")
    if train < 1:
        raise ValueError(f"loading.options.train={train} is a number of pictures, at least 1")
    splits = {
        split: DetectionSplit(
            Shapes(looks),
            [(split, number) for number in range(count)],
            torch.tensor([looks.size_of(split, number) for number in range(count)], dtype=torch.int64),
        )
        for split, count in counts.items()
        if count
    }
    limited, notes = limit(splits, config)
    classes = list(KINDS)[: looks.kinds]
    return DetectionData(
        "shapes",
        limited,
        classes,
        [label + 1 for label in range(len(classes))],
        preparation(config, short, long),
        masks,
        eval_batch=eval_batch,
        notes=tuple(notes),
    )


def _scene(options: dict[str, Any]) -> Scene:
    known = [field.name for field in fields(Scene)]
    if unknown := [name for name in options if name not in known]:
        raise nearest_match_error("option of the data set shapes", unknown[0], known)
    return Scene(**options)
