"""Pictures with what was found and what is annotated, as a run stores them in JSON, for the report to draw.

{"name", "image": a small picture as a data address, "found": {"boxes", "scores", "labels", "masks"}, "truth": {...}}, all in
pixels of the small picture.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..common.batch import Batch
from ..common.pictures import open_picture
from ..data.detection.results import truth_of
from ..data.detection.rle import decode, encode

SIDE = 480  # pixels, at most: a page is not an album
FEWEST_SCORE = 0.3  # of detections that are stored
QUALITY = 85
MOST = 8  # pictures


def examples_of(batch: Batch, results: Sequence[Mapping[str, Any]], data: Any) -> list[dict[str, Any]]:
    """Of the first images of a batch of `DetectionData`; `results` are in pixels of the stored images."""
    examples = []
    for place in range(min(batch.count, MOST)):
        target, number = batch.targets[place], int(batch.index[place])
        split = data.splits[target["split"]]
        image, record = split.source.read(split.keys[number])
        examples.append(stored_example(record.name, image, results[place], truth_of(record)))
    return examples


def stored_example(name: str, image: Image.Image, result: Mapping[str, Any], truth: Mapping[str, Any]) -> dict[str, Any]:
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    scale = np.array([small.width / image.width, small.height / image.height] * 2)
    scores = np.asarray(result["scores"], np.float64)
    kept = np.flatnonzero(scores >= FEWEST_SCORE)
    found = _shrunk(result, kept, scale, small) | {"scores": scores[kept].round(4).tolist()}
    crowds = (np.asarray(truth.get("crowd_boxes", ()), np.float64).reshape(-1, 4) * scale).round(2).tolist()
    annotated = _shrunk(truth, np.arange(len(truth["labels"])), scale, small) | {"crowd_boxes": crowds}
    return {"name": name, "image": address_of(small), "found": found, "truth": annotated}


def picture_of(example: Mapping[str, Any]) -> Image.Image:
    """The stored picture. Addresses outside of the file are not fetched."""
    address = str(example.get("image", ""))
    if not address.startswith("data:image/"):
        raise ValueError("a stored picture is a data address")
    return open_picture(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")


def address_of(image: Image.Image) -> str:
    """A JPEG inside a URI."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _shrunk(objects: Mapping[str, Any], kept: Any, scale: Any, small: Image.Image) -> dict[str, Any]:
    boxes = np.asarray(objects["boxes"], np.float64).reshape(-1, 4)[kept] * scale
    masks = objects.get("masks")
    return {
        "boxes": boxes.round(2).tolist(),
        "labels": np.asarray(objects["labels"], np.int64)[kept].tolist(),
        "masks": masks and [_smaller(masks[place], small.size) for place in kept],
    }


def _smaller(rle: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    mask = Image.fromarray(decode(rle)).resize(size, Image.Resampling.NEAREST)
    return encode(np.asarray(mask))
