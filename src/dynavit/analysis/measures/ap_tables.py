"""A stored evaluation of a detector as tables, for a terminal and a page."""

from collections.abc import Mapping
from typing import Any

from ...common.metric import NOTHING

NAMES = {"bbox": "box", "segm": "mask"}  # of the two ways to compare detections
ERRORS = "what they are"  # head of the table of errors
Table = tuple[str, list[str], list[list[str]]]


def ap_tables(result: Mapping[str, Any]) -> list[Table]:
    """(title, header, rows) of a stored evaluation: all measures of boxes and masks, those of each class, and the errors."""
    coco = result.get("coco") or {}
    kinds = [kind for kind in NAMES if kind in coco]
    if not kinds:
        return []
    measures = [name for name in coco[kinds[0]] if name != "per_class"]
    overall = [[NAMES[kind], *(percent(coco[kind][name]) for name in measures)] for kind in kinds]
    tables = [(f"average precision and recall on {coco['images']} images, %", ["", *measures], overall)]
    rows = []
    for place, entry in enumerate(coco[kinds[0]]["per_class"]):
        own = [percent(coco[kind]["per_class"][place][name]) for kind in kinds for name in ("AP", "AP50")]
        rows.append([entry["class"], str(entry["objects"]), *own])
    header = ["class", "objects", *(f"{NAMES[kind]} {name}" for kind in kinds for name in ("AP", "AP50"))]
    tables.append(("average precision of each class, %", header, rows))
    errors = dict(result.get("errors") or {})
    if errors:
        score = errors.pop("score")
        rows = [[sort, str(number)] for sort, number in errors.items()]
        tables.append((f"detections with a score of {score:g} or more, and what they missed", [ERRORS, "number"], rows))
    return tables


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"
