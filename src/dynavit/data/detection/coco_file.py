"""Annotation files in COCO's form: a dict of "images", "annotations" and "categories"."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from .record import Record
from .segments import Segment, area_of, read_segment


@dataclass(frozen=True)
class CocoFile:
    """An annotation file.

    Attributes:
        category_ids: in ascending order; the place of an id is the label.
        classes: their names.
        records: one for each image, in the order of the file; paths of images are still those of the file.
    """

    category_ids: list[int]
    classes: list[str]
    records: list[Record]


def read_coco(file: Path) -> CocoFile:
    """ValueError that names the file, and the entry in it, for whatever does not fit."""
    content = _json(file)
    try:
        return parse_coco(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def parse_coco(content: Any) -> CocoFile:
    """The same from a dict."""
    if isinstance(content, list):
        raise ValueError("this is a list, as results of a detector are; annotations are a dict with images and categories")
    lists = {}
    for name in ("images", "annotations", "categories"):
        if not isinstance(content, Mapping) or not isinstance(content.get(name), list):
            raise ValueError(f"there is no list {name!r}; a COCO file has images, annotations and categories")
        lists[name] = content[name]
    categories = _by_id("categories", lists["categories"])
    ids = sorted(categories)
    labels = {number: label for label, number in enumerate(ids)}
    classes = [_text("categories", categories[number], "name") for number in ids]
    images = _by_id("images", lists["images"])
    found: dict[int, list[tuple[Any, Segment]]] = defaultdict(list)
    for place, annotation in enumerate(lists["annotations"]):
        where = f"annotation {annotation.get('id', place) if isinstance(annotation, Mapping) else place}"
        try:
            row = _annotation(annotation, images, labels)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{where}: {reason}") from error
        found[annotation["image_id"]].append(row)
    return CocoFile(ids, classes, [_record(image, found[number]) for number, image in images.items()])


def _annotation(annotation: Any, images: Mapping[int, Any], labels: Mapping[int, int]) -> tuple[Any, Segment]:
    """((x, y, width, height, label, area, crowd), mask)"""
    if not isinstance(annotation, Mapping):
        raise ValueError(f"it is {annotation!r:.40}, not names and values")
    if "segments_info" in annotation:
        raise ValueError("it has segments_info, as panoptic files have; boxes are in instances_*.json")
    image, category = annotation["image_id"], annotation["category_id"]
    if image not in images:
        raise ValueError(f"it belongs to image {image!r}, which is not among the images")
    if category not in labels:
        raise ValueError(f"it is of category {category!r}, which is not among the categories")
    box = annotation["bbox"]
    if not (isinstance(box, Sequence | np.ndarray) and len(box) == 4 and all(is_number(side) for side in box)):
        raise ValueError(f"its bbox is {box!r:.60}; expected four numbers: left, top, width, height")
    about = images[image]
    segment = read_segment(annotation.get("segmentation"), about["height"], about["width"])
    area = annotation.get("area")
    if area is None:
        area = area_of(segment) or box[2] * box[3]
    if not is_number(area):
        raise ValueError(f"its area is {area!r:.40}, no number")
    crowd = annotation.get("iscrowd") or 0
    if crowd not in (0, 1):
        raise ValueError(f"its iscrowd is {crowd!r:.40}, neither 0 nor 1")
    return (*box, labels[category], area, crowd), segment


def _record(image: Mapping[str, Any], rows: Sequence[tuple[Any, Segment]]) -> Record:
    name = image["file_name"]
    if not rows:
        return Record(image["id"], name, name, image["height"], image["width"])
    numbers = np.array([row for row, _ in rows], np.float64)
    return Record(
        image["id"],
        name,
        name,
        image["height"],
        image["width"],
        numbers[:, :4],
        numbers[:, 4].astype(np.int64),
        numbers[:, 5],
        numbers[:, 6] > 0,
        [segment for _, segment in rows],
    )


def _by_id(what: str, entries: Sequence[Any]) -> dict[int, Any]:
    """Entries by their ids, in the order of the file. Whole numbers may be spelled 7.0, as tables of floats write them."""
    found: dict[int, Any] = {}
    for place, entry in enumerate(entries):
        where = f"{what}[{place}]"
        if not isinstance(entry, Mapping) or not is_whole(entry.get("id")):
            raise ValueError(f"{where} has no id that is a whole number: {entry!r:.60}")
        if entry["id"] in found:
            raise ValueError(f"{where} has the id {entry['id']}, which another one of {what} has too")
        names = ["id"]
        if what == "images":
            _text(what, entry, "file_name")
            names += ["height", "width"]
            if not all(is_whole(entry.get(side)) and entry[side] > 0 for side in ("height", "width")):
                size = f"{entry.get('height')!r} and {entry.get('width')!r}"
                raise ValueError(f"image {entry['id']} has height and width {size}; expected whole numbers of pixels")
        found[int(entry["id"])] = {**entry, **{name: int(entry[name]) for name in names}}
    if not found:
        raise ValueError(f"the list {what!r} is empty")
    return found


def _text(what: str, entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"entry {entry['id']} of {what} has {name}={value!r}; expected a text")
    return value


def is_whole(value: Any) -> bool:
    return is_number(value) and value == int(value)


def is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _json(file: Path) -> Any:
    """Without the checks of `read_json`: half a gigabyte of polygons goes through here."""
    if not file.is_file():
        raise ValueError(f"there is no annotation file {file}")
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
