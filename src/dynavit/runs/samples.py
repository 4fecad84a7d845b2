"""A few pictures to try a served model with, in memory: what the page offers to click on.

Nothing at the top imports torch: an ONNX bundle is served without it.
"""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..deploy.bundle.manifest import is_bundle, read_manifest
from ..deploy.serve.service import Sample
from .subject import Subject

LARGEST_SIDE = 320  # pixels
DIGITS = ([str(digit) for digit in range(10)], [8, 8])  # classes and size of the images that are part of the package


def samples_of(subject: Subject, count: int) -> tuple[list[Sample], str | None]:
    """So many pictures, and a word about it where there are none.

    Of a calibrated run on small images those that its report shows, easy and hard ones by turns; otherwise some of its data.
    A bundle has no data; one of the built-in digits gets those.
    """
    if not count:
        return [], None
    if is_bundle(subject.run):
        facts = read_manifest(subject.run)
        same = (facts["classes"], facts.get("preprocess", {}).get("stored_size")) == DIGITS
        return (_digits(count), None) if same else ([], "a bundle brings no pictures to try it with")
    from .calibrate import read_calibration
    from .model_files import ModelCard

    card = ModelCard.read(subject.run)
    found = read_calibration(subject.run)
    if found and found.get("gallery") and card.preprocess.get("kind") == "memory":
        return _of_gallery(found["gallery"], card.classes, count), None
    try:
        return _of_data(_own_data(subject, card), count), None
    except (ValueError, OSError) as error:
        return [], f"there are no pictures to try it with: {error}"


def _of_gallery(gallery: list[list[dict[str, Any]]], classes: list[str], count: int) -> list[Sample]:
    """Images that left at exit 1, 2, ..., by turns."""
    by_turns = [column[row] for row in range(max(map(len, gallery))) for column in gallery if row < len(column)]
    return [
        Sample(f"{classes[entry['target']]} (no. {entry['index']})", base64.b64decode(entry["image"].partition(",")[2]))
        for entry in by_turns[:count]
    ]


def _digits(count: int) -> list[Sample]:
    """Some of all the digits that come with the package, read without torch."""
    with np.load(Path(__file__).parents[1] / "data" / "digits.npz", allow_pickle=False) as arrays:
        ink, labels = arrays["images"], arrays["labels"]
    pixels = (ink * (255 / 16)).round().astype(np.uint8)
    return [Sample(f"{labels[at]} (no. {at})", _png(Image.fromarray(pixels[at]))) for at in _evenly(count, len(labels))]


def _own_data(subject: Subject, card: Any) -> Any:
    from dataclasses import replace

    from ..data.open import open_data

    config = subject.config()
    card.require_guests(subject.run, "data set")
    return open_data(config.data, subject.data_dir or config.data_dir, replace(config.loading, download=False))


def _of_data(data: Any, count: int) -> list[Sample]:
    """Evenly over the split that a model is judged on."""
    from .opened import final_split

    split = data.splits[final_split(data)]
    numbers = _evenly(count, len(split))
    return [Sample(f"{data.classes[int(split.labels[at])]} (no. {at})", _png(_picture(split, at))) for at in numbers]


def _evenly(count: int, most: int) -> list[int]:
    """
    >>> _evenly(3, 10), _evenly(3, 2)
    ([0, 3, 6], [0, 1])
    """
    count = min(count, most)
    return [at * most // count for at in range(count)]


def _picture(split: Any, at: int) -> Any:
    from ..data.dataset import FileSplit, MemorySplit
    from ..data.read_image import read_image

    if isinstance(split, MemorySplit):
        return Image.fromarray(split.images[at].permute(1, 2, 0).squeeze(-1).numpy())
    image = read_image(split.paths[at]) if isinstance(split, FileSplit) else split.read(split.keys[at])
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return image


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
