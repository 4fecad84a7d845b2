"""What a detector found in one image: as COCO's results, as an answer to a person, and back.

A result is {"boxes": (k, 4) x1 y1 x2 y2 in pixels of the stored image, "scores": (k,), "labels": (k,), "masks": k run lengths
(`rle`) or None}. Its arrays are tensors, arrays or lists.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .record import Record
from .rle import encode

Result = Mapping[str, Any]


def coco_results(image_id: int, result: Result, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Entries of a results file in COCO's form: boxes as left, top, width, height, the categories' own ids, masks as a text."""
    boxes, scores, labels = (_plain(result[name]) for name in ("boxes", "scores", "labels"))
    masks = result.get("masks") or [None] * len(scores)
    found = []
    for (x1, y1, x2, y2), score, label, mask in zip(boxes, scores, labels, masks, strict=True):
        box = [float(x1), float(y1), float(x2 - x1), float(y2 - y1)]
        entry = {"image_id": int(image_id), "category_id": category_ids[int(label)], "bbox": box, "score": float(score)}
        found.append(entry if mask is None else {**entry, "segmentation": _with_text(mask)})
    return found


def in_original_pixels(boxes: Tensor, target: Mapping[str, Any]) -> Tensor:
    """(k, 4) boxes in an input's pixels -> in those of the stored image, cut off at its border. `target` is the input's."""
    height, width = target["original_size"]
    down, across = target["scale"]
    found = boxes / boxes.new_tensor([across, down, across, down])
    if target["flipped"]:
        found = torch.stack([width - found[:, 2], found[:, 1], width - found[:, 0], found[:, 3]], 1)
    limits = found.new_tensor([width, height, width, height])
    return torch.minimum(found.clamp(min=0), limits)


def truth_of(record: Record) -> dict[str, Any]:
    """What is annotated in an image, in the form of a result without scores: "boxes", "labels", "masks" of what can be found,
    and "crowd_boxes"."""
    usable = record.usable
    return {
        "boxes": record.corners[usable],
        "labels": record.labels[usable],
        "masks": [encode(mask) for mask in record.masks(usable)] if record.segments and record.masked[usable].all() else None,
        "crowd_boxes": record.corners[record.crowd],
    }


def answer_of(result: Result, classes: Sequence[str], size: tuple[int, int]) -> dict[str, Any]:
    """{"found": [{"label", "confidence", "box": [x1, y1, x2, y2], "mask"}, ...], "size": [height, width]} as JSON takes it, the
    surest first; "mask" is there where the model finds masks."""
    boxes, scores, labels = (_plain(result[name]) for name in ("boxes", "scores", "labels"))
    masks = result.get("masks") or [None] * len(scores)
    found = []
    for place in np.argsort(-np.asarray(scores, np.float64), kind="stable"):
        box = [float(side) for side in boxes[place]]
        entry = {"label": classes[int(labels[place])], "confidence": float(scores[place]), "box": box}
        found.append(entry if masks[place] is None else {**entry, "mask": _with_text(masks[place])})
    return {"found": found, "size": list(size)}


def result_of(answer: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """An answer -> the result that it was made of."""
    found = answer["found"]
    masks = [entry.get("mask") for entry in found]
    return {
        "boxes": np.array([entry["box"] for entry in found], np.float64).reshape(-1, 4),
        "scores": np.array([entry["confidence"] for entry in found], np.float64),
        "labels": np.array([classes.index(entry["label"]) for entry in found], np.int64),
        "masks": masks if found and None not in masks else None,
    }


def surer_than(answer: Mapping[str, Any], score: float) -> dict[str, Any]:
    """The answer without objects that the model is less sure of."""
    return {**answer, "found": [entry for entry in answer["found"] if entry["confidence"] >= score]}


def found_line(answer: Mapping[str, Any]) -> str:
    """
    >>> found_line({"found": [{"label": "dog", "confidence": 0.91, "box": [3.2, 4, 50, 60.6]}]})
    'dog 91% at 3,4–50,61'
    >>> found_line({"found": []})
    'nothing'
    """
    texts = [
        f"{entry['label']} {entry['confidence']:.0%} at {x1:.0f},{y1:.0f}–{x2:.0f},{y2:.0f}"
        for entry in answer["found"]
        for x1, y1, x2, y2 in [entry["box"]]
    ]
    return "; ".join(texts) or "nothing"


def _plain(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _with_text(mask: Mapping[str, Any]) -> dict[str, Any]:
    counts = mask["counts"]
    return {"size": [int(side) for side in mask["size"]], "counts": counts.decode() if isinstance(counts, bytes) else counts}
