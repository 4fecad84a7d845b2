"""Average precision of detections as COCO counts it: matched and added up by the package that everybody uses."""

import contextlib
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.detection.coco_tools import CocoTools, coco_tools
from ...data.detection.rle import area, encode
from ...data.detection.segments import mask_of, plain_segment, read_segment

MOST = [1, 10, 100]  # detections of an image and class that count
AREAS = ("all", "small", "medium", "large")  # in the package's order
MEASURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100")
Numbers = NDArray[np.float64]


def evaluate_detections(
    ground_truth: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    image_ids: Sequence[int] | None = None,
    kinds: Sequence[str] = ("bbox", "segm"),
) -> dict[str, Any]:
    """{"images": number, kind: {"AP", "AP50", ..., "AR100", "per_class": [{"class", "objects", "AP", ...}, ...]}}

    Values are fractions; None where there is nothing to find: no object of that size or class. "segm" is left out where
    annotations or results hold no masks.

    Args:
        ground_truth: annotations in COCO's form.
        results: detections in COCO's form; those of other images than `image_ids` are an error. A box may be missing where
            there is a mask, and is the one around it then.
        image_ids: the images that were looked at, all annotated ones if not given. Objects of others are not missed.
    """
    tools = coco_tools("average precision (AP)")
    ids = sorted(set(image_ids if image_ids is not None else (image["id"] for image in ground_truth["images"])))
    _check(ground_truth, results, ids)
    found: dict[str, Any] = {"images": len(ids)}
    for kind in kinds:
        if kind not in ("bbox", "segm"):
            raise ValueError(f"detections are compared by bbox or segm, not {kind!r}")
        if kind == "segm" and not _have_masks(ground_truth, results):
            continue
        with contextlib.redirect_stdout(io.StringIO()):  # one of the packages prints
            evaluation = _accumulated(tools, kind, ground_truth, results, ids)
        found[kind] = _measures(evaluation["precision"], evaluation["recall"])
        found[kind]["per_class"] = _per_class(ground_truth, ids, evaluation)
    return found


def without_repeats(found: Sequence[tuple[int, Any]]) -> dict[int, Any]:
    """(image id, what was found in it) of all processes -> one for each image, the first, in the order of ids.

    Several processes may look at the same image, where there are not as many images as their shares would need.
    """
    kept: dict[int, Any] = {}
    for image_id, results in found:
        kept.setdefault(image_id, results)
    return dict(sorted(kept.items()))


def _accumulated(
    tools: CocoTools, kind: str, truth: Mapping[str, Any], results: Sequence[Mapping[str, Any]], ids: Sequence[int]
) -> Mapping[str, Numbers]:
    """precision (thresholds, recalls, classes, areas, most) and recall (thresholds, classes, areas, most); -1: nothing."""
    looked_at = set(ids)
    images = {image["id"]: image for image in truth["images"] if image["id"] in looked_at}
    wanted = [entry for entry in truth["annotations"] if entry["image_id"] in images]
    annotations = [_annotation(number, entry, kind, images) for number, entry in enumerate(wanted, 1)]
    # Not by the package's own reader of results: it refuses an empty list, and takes the box's area for the mask's.
    detections = [_detection(number, entry, kind, images, tools) for number, entry in enumerate(results, 1)]
    indices = []
    for entries in (annotations, detections):
        index = tools.coco()
        index.dataset = {"images": list(truth["images"]), "categories": list(truth["categories"]), "annotations": entries}
        index.createIndex()
        indices.append(index)
    evaluator = tools.evaluator(*indices, kind)
    evaluator.params.imgIds = list(ids)
    evaluator.params.maxDets = list(MOST)
    evaluator.evaluate()
    evaluator.accumulate()
    counted: dict[str, Numbers] = {name: np.asarray(evaluator.eval[name]) for name in ("precision", "recall")}
    return counted


def _annotation(number: int, entry: Mapping[str, Any], kind: str, images: Mapping[int, Any]) -> dict[str, Any]:
    """A copy, since the packages write into what they get, with what files may leave out. Numbered anew: an id of 0 would be
    taken for no match."""
    box, size = entry["bbox"], entry.get("area")
    found = {name: entry[name] for name in ("image_id", "category_id", "bbox")}
    found |= {"id": number, "area": box[2] * box[3] if size is None else size, "iscrowd": int(entry.get("iscrowd") or 0)}
    if kind == "segm":
        sides = _sides(images[entry["image_id"]])
        found["segmentation"] = plain_segment(read_segment(entry.get("segmentation"), *sides), *sides)
    return found


def _detection(number: int, entry: Mapping[str, Any], kind: str, images: Mapping[int, Any], tools: CocoTools) -> dict[str, Any]:
    found = {"id": number, "iscrowd": 0, **{name: entry[name] for name in ("image_id", "category_id", "score")}}
    if kind == "segm" or "bbox" not in entry:
        try:
            mask = _run_lengths(entry["segmentation"], *_sides(images[entry["image_id"]]))
        except ValueError as error:
            raise ValueError(f"detection {number}, in image {entry['image_id']}: {error}") from error
        found |= {"segmentation": mask, "area": area(mask)}
    found["bbox"] = entry["bbox"] if "bbox" in entry else tools.mask.toBbox(found["segmentation"]).tolist()
    return found if kind == "segm" else {**found, "area": found["bbox"][2] * found["bbox"][3]}


def _run_lengths(found: Any, height: int, width: int) -> dict[str, Any]:
    """A mask in any spelling as the packages take it."""
    segment = read_segment(found, height, width)
    counts = segment["counts"] if isinstance(segment, dict) else None
    text = counts if isinstance(counts, str | bytes) else encode(mask_of(segment, height, width))["counts"]
    return {"size": [height, width], "counts": text.encode() if isinstance(text, str) else text}


def _sides(image: Mapping[str, Any]) -> tuple[int, int]:
    return image["height"], image["width"]


def _measures(precision: Numbers, recall: Numbers) -> dict[str, Any]:
    """Means over thresholds of the overlap, recalls and classes, without those that have nothing to find."""
    every, fifty, seventy_five = slice(None), 0, 5  # thresholds 0.50, 0.55, ..., 0.95

    def ap(threshold: Any, area: str) -> float | None:
        return _mean(precision[threshold, :, :, AREAS.index(area), MOST.index(100)])

    found = {"AP": ap(every, "all"), "AP50": ap(fifty, "all"), "AP75": ap(seventy_five, "all")}
    found |= {f"AP{area[0]}": ap(every, area) for area in AREAS[1:]}
    return found | {f"AR{most}": _mean(recall[:, :, 0, place]) for place, most in enumerate(MOST)}


def _per_class(truth: Mapping[str, Any], ids: Sequence[int], evaluation: Mapping[str, Numbers]) -> list[dict[str, Any]]:
    looked_at = set(ids)
    objects = Counter(
        entry["category_id"] for entry in truth["annotations"] if entry["image_id"] in looked_at and not entry.get("iscrowd")
    )
    rows = []
    for place, category in enumerate(sorted(truth["categories"], key=lambda category: category["id"])):
        own = _measures(evaluation["precision"][:, :, [place]], evaluation["recall"][:, [place]])
        rows.append({"class": category["name"], "id": category["id"], "objects": objects[category["id"]], **own})
    return rows


def _mean(values: Numbers) -> float | None:
    there = values[values > -1]
    return float(there.mean()) if there.size else None


def _have_masks(truth: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> bool:
    annotated = any(entry.get("segmentation") for entry in truth["annotations"])
    return annotated and all("segmentation" in entry for entry in results)


def _check(truth: Mapping[str, Any], results: Sequence[Mapping[str, Any]], ids: Sequence[int]) -> None:
    known, categories = {image["id"] for image in truth["images"]}, {category["id"] for category in truth["categories"]}
    if unknown := [number for number in ids if number not in known]:
        raise ValueError(f"image {unknown[0]} was looked at, but it is not among the {len(known)} annotated ones")
    looked_at = set(ids)
    for number, entry in enumerate(results, 1):
        _check_result(number, entry)
        if entry["image_id"] not in looked_at:
            raise ValueError(
                f"there is a detection for image {entry['image_id']}, which is not among those that were looked at"
            )
        if entry["category_id"] not in categories:
            raise ValueError(
                f"a detection in image {entry['image_id']} is of category {entry['category_id']}, which the annotations do not "
                "have; results name COCO's ids, not labels"
            )


def _check_result(number: int, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        raise ValueError(f"detection {number} is {entry!r:.40}; a results file is a list of image_id, category_id, bbox, score")
    if missing := [name for name in ("image_id", "category_id", "score") if name not in entry]:
        raise ValueError(f"detection {number} has no {missing[0]}; it has {', '.join(map(str, entry))}")
    if not _numbers([entry["score"]], 1):
        raise ValueError(f"detection {number}, in image {entry['image_id']}, has the score {entry['score']!r:.40}, no number")
    if "bbox" not in entry and not entry.get("segmentation"):
        raise ValueError(f"detection {number}, in image {entry['image_id']}, has neither bbox nor segmentation")
    if "bbox" in entry and not _numbers(entry["bbox"], 4):
        box = f"{entry['bbox']!r:.60}"
        raise ValueError(
            f"detection {number}, in image {entry['image_id']}, has the bbox {box}; expected left, top, width, height"
        )


def _numbers(values: Any, count: int) -> bool:
    """Whether these are so many finite numbers."""
    return (
        isinstance(values, Sequence)
        and len(values) == count
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    )
