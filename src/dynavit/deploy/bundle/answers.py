"""Answers about image files, in one form for runs and bundles.

    {"image": path, "label": best class, "confidence": its probability, "top": [{"label", "confidence"}, ...]}
    {"image": path, "error": why it cannot be read}

A cascade that may stop early adds "exit", counted from 1.
"""

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...common.answers import best_classes, check_top

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

Input = TypeVar("Input")
Answer = dict[str, Any]


def answer_files(
    images: Iterable[str | PathLike[str]],
    classes: list[str],
    top: int,
    *,
    prepare: Callable[[Path], Input],
    predict: Callable[[Input], tuple[NDArray[np.floating], int | None]],
) -> list[Answer]:
    """One answer for each file, in the order of `image_files`.

    Args:
        prepare: a file to an input of the model. Its ValueError is the answer's "error".
        predict: an input to the probabilities (classes,), and the exit it left at, counted from 1; None: there are no exits.
    """
    check_top(top)  # before the first image is read
    answers: list[Answer] = []
    for path in image_files(images):
        try:
            pixels = prepare(path)
        except ValueError as error:
            answers.append({"image": str(path), "error": str(error)})
            continue
        answers.append({"image": str(path), **best_classes(*predict(pixels), classes, top)})
    return answers


def image_files(paths: Iterable[str | PathLike[str]]) -> list[Path]:
    """Files as they are, directories as the images in them."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS)
            if not inside:
                raise ValueError(f"{path}: there is no image in this directory ({', '.join(sorted(EXTENSIONS))})")
            files += inside
        elif not path.exists():
            raise ValueError(f"{path}: there is no such file")
        else:
            files.append(path)
    if not files:
        raise ValueError("no images were given")
    return files
