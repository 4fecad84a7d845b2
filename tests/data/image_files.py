"""Tiny image files for tests of data sets."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_image(path: Path, number: int, size: tuple[int, int] = (20, 24)) -> Path:
    """Noise that is different for each number; (height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_folder(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    """split -> class -> how many images."""
    number = 0
    for split, classes in counts.items():
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                write_image(root / split / name / f"{i}.png", number)
                number += 1
    return root


def one_colour(number: int) -> Image.Image:
    """The `read` of a `MapSplit`; number 2 is broken. It stands here because a worker has to find it by its module's name."""
    if number == 2:
        raise ValueError(f"cannot read sample {number}")
    return Image.new("RGB", (8, 8), (number, 0, 0))
