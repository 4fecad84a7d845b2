"""Average precision of detections as COCO counts it: matched and added up by the package that everybody uses."""

import contextlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.detection.coco_file import CocoFile, is_number, is_whole, parse_coco
from ...data.detection.coco_tools import CocoTools, coco_tools
from ...data.detection.record import Record
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
        ground_truth: annotations in COCO's form; images need their height and width, files need not be named.
        results: detections in COCO's form; those of other images than `image_ids` are an error. A box may be missing where
            there is a mask, and is the one around it then.
        image_ids: the images that were looked at, all annotated ones if not given. Objects of others are not missed.
    """
    tools = coco_tools("average precision (AP)")
    truth = _parsed(ground_truth)
    records = {record.id: record for record in truth.records}
    ids = sorted(records if image_ids is None else set(image_ids))
    if unknown := [number for number in ids if number not in records]:
        raise ValueError(f"image {unknown[0]} was looked at, but it is not among the {len(records)} annotated ones")
    looked_at = {number: records[number] for number in ids}
    _check(results, looked_at, truth.category_ids)
    found: dict[str, Any] = {"images": len(ids)}
    for kind in kinds:
        if kind not in ("bbox", "segm"):
            raise ValueError(f"detections are compared by bbox or segm, not {kind!r}")
        if kind == "segm" and not _have_masks(truth, results):
            continue
        with contextlib.redirect_stdout(io.StringIO()):  # one of the packages prints
            evaluation = _accumulated(tools, kind, truth, looked_at, results)
        found[kind] = _measures(evaluation["precision"], evaluation["recall"])
        found[kind]["per_class"] = _per_class(truth, looked_at.values(), evaluation)
    return found


def without_repeats(found: Sequence[tuple[int, Any]]) -> dict[int, Any]:
    """(image id, what was found in it) of all processes -> one for each image, the first, in the order of ids.

    Several processes may look at the same image, where there are not as many images as their shares would need.
    """
    kept: dict[int, Any] = {}
    for image_id, results in found:
        kept.setdefault(image_id, results)
    return dict(sorted(kept.items()))


def _parsed(ground_truth: Mapping[str, Any]) -> CocoFile:
    """As the reader of files takes it, which finds whatever is wrong. Two exceptions: files of images need not be named, and
    images may be a part of those that are annotated."""
    if isinstance(ground_truth, Mapping) and all(
        isinstance(ground_truth.get(name), list) for name in ("images", "annotations")
    ):
        images = [{**image, "file_name": "-"} if isinstance(image, Mapping) else image for image in ground_truth["images"]]
        known = {image["id"] for image in images if isinstance(image, Mapping) and is_whole(image.get("id"))}
        own = [entry for entry in ground_truth["annotations"] if not _of_another_image(entry, known)]
        ground_truth = {**ground_truth, "images": images, "annotations": own}
    try:
        return parse_coco(ground_truth)
    except ValueError as error:
        raise ValueError(f"ground truth: {error}") from error


def _of_another_image(entry: Any, known: Set[int]) -> bool:
    return isinstance(entry, Mapping) and is_whole(entry.get("image_id")) and entry["image_id"] not in known


def _accumulated(
    tools: CocoTools, kind: str, truth: CocoFile, looked_at: Mapping[int, Record], results: Sequence[Mapping[str, Any]]
) -> Mapping[str, Numbers]:
    """precision (thresholds, recalls, classes, areas, most) and recall (thresholds, classes, areas, most); -1: nothing.

    Images, classes and annotations are numbered from 1: the package keeps numbers as floats, which are not exact above 2**53,
    and takes an annotation's 0 for no match.
    """
    images = {number: place for place, number in enumerate(looked_at, 1)}
    categories = {number: place for place, number in enumerate(truth.category_ids, 1)}
    annotations = [entry for number, record in looked_at.items() for entry in _annotations(record, images[number], kind)]
    # Not by the package's own reader of results: it refuses an empty list, and takes the box's area for the mask's.
    detections = [
        _detection(number, entry, kind, looked_at[entry["image_id"]], tools)
        | {"image_id": images[entry["image_id"]], "category_id": categories[entry["category_id"]]}
        for number, entry in enumerate(results, 1)
    ]
    about = {
        "images": [
            {"id": images[number], "height": record.height, "width": record.width} for number, record in looked_at.items()
        ],
        "categories": [{"id": place, "name": str(place)} for place in categories.values()],
    }
    indices = []
    for entries in (annotations, detections):
        index = tools.coco()
        index.dataset = {**about, "annotations": [{**entry, "id": number} for number, entry in enumerate(entries, 1)]}
        index.createIndex()
        indices.append(index)
    evaluator = tools.evaluator(*indices, kind)
    evaluator.params.imgIds = list(images.values())
    evaluator.params.maxDets = list(MOST)
    evaluator.evaluate()
    evaluator.accumulate()
    counted: dict[str, Numbers] = {name: np.asarray(evaluator.eval[name]) for name in ("precision", "recall")}
    return counted


def _annotations(record: Record, image: int, kind: str) -> Iterator[dict[str, Any]]:
    for place, (box, label, size, crowd) in enumerate(
        zip(record.boxes.tolist(), record.labels.tolist(), record.areas.tolist(), record.crowd.tolist(), strict=True)
    ):
        entry = {"image_id": image, "category_id": label + 1, "bbox": box, "area": size, "iscrowd": int(crowd)}
        if kind == "segm":
            entry["segmentation"] = plain_segment(record.segments[place], record.height, record.width)
        yield entry


def _detection(number: int, entry: Mapping[str, Any], kind: str, record: Record, tools: CocoTools) -> dict[str, Any]:
    found: dict[str, Any] = {"iscrowd": 0, "score": entry["score"]}
    if kind == "segm" or "bbox" not in entry:
        try:
            mask = _run_lengths(entry["segmentation"], record.height, record.width)
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


def _measures(precision: Numbers, recall: Numbers) -> dict[str, Any]:
    """Means over thresholds of the overlap, recalls and classes, without those that have nothing to find."""
    every, fifty, seventy_five = slice(None), 0, 5  # thresholds 0.50, 0.55, ..., 0.95

    def ap(threshold: Any, area: str) -> float | None:
        return _mean(precision[threshold, :, :, AREAS.index(area), MOST.index(100)])

    found = {"AP": ap(every, "all"), "AP50": ap(fifty, "all"), "AP75": ap(seventy_five, "all")}
    found |= {f"AP{area[0]}": ap(every, area) for area in AREAS[1:]}
    return found | {f"AR{most}": _mean(recall[:, :, 0, place]) for place, most in enumerate(MOST)}


def _per_class(truth: CocoFile, records: Iterable[Record], evaluation: Mapping[str, Numbers]) -> list[dict[str, Any]]:
    objects = Counter(label for record in records for label in record.labels[~record.crowd].tolist())
    rows = []
    for label, (number, name) in enumerate(zip(truth.category_ids, truth.classes, strict=True)):
        own = _measures(evaluation["precision"][:, :, [label]], evaluation["recall"][:, [label]])
        rows.append({"class": name, "id": number, "objects": objects[label], **own})
    return rows


def _mean(values: Numbers) -> float | None:
    there = values[values > -1]
    return float(there.mean()) if there.size else None


def _have_masks(truth: CocoFile, results: Sequence[Mapping[str, Any]]) -> bool:
    annotated = any(record.masked.any() for record in truth.records)
    return annotated and all("segmentation" in entry for entry in results)


def _check(results: Sequence[Mapping[str, Any]], looked_at: Mapping[int, Record], category_ids: Sequence[int]) -> None:
    categories = set(category_ids)
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
    if not (is_whole(entry["image_id"]) and is_whole(entry["category_id"])):
        ids = f"{entry['image_id']!r:.40} and {entry['category_id']!r:.40}"
        raise ValueError(f"detection {number} has image_id and category_id {ids}; expected whole numbers")
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
    return isinstance(values, Sequence) and len(values) == count and all(map(is_number, values))
