"""What is wrong with a detection: one sort for each, and the objects that nothing found.

At the overlap 0.5 that most people mean by "found". A detection is
    right          of an object's class and on it, the surest one there;
    repeated       likewise, but a surer one was there;
    wrong class    on an object of another class;
    badly placed   of an object's class and near it: an overlap from 0.1 to 0.5;
    background     near no object of its class, and on none at all.
One on a crowd of its class is neither right nor wrong ("crowd"). Objects that no right detection is on are missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOUND, NEAR = 0.5, 0.1
SORTS = ("right", "repeated", "wrong class", "badly placed", "background", "crowd")
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """`sorts`: one for each of k detections. `partner`: (k,) the object it is about, or -1. `missed`: numbers of objects."""

    sorts: Sequence[str]
    partner: Sequence[int]
    missed: Sequence[int]


def judge(result: Mapping[str, Any], truth: Mapping[str, Any]) -> Judged:
    """Detections {"boxes" (k, 4), "scores", "labels"} beside what is annotated {"boxes" (n, 4), "labels", "crowd_boxes"}."""
    scores, labels, wanted = (np.asarray(values) for values in (result["scores"], result["labels"], truth["labels"]))
    overlaps = overlap(_boxes(result["boxes"]), _boxes(truth["boxes"]))
    inside = share_inside(_boxes(result["boxes"]), _boxes(truth.get("crowd_boxes", ())))
    sorts, partner = [""] * len(scores), [-1] * len(scores)
    taken: set[int] = set()
    for place in np.argsort(-scores, kind="stable"):
        own = np.where(wanted == labels[place], overlaps[place], 0.0)
        free = np.array([value if number not in taken else 0.0 for number, value in enumerate(own)])
        if free.max(initial=0) >= FOUND:
            partner[place] = int(free.argmax())
            taken.add(partner[place])
            sorts[place] = "right"
        elif own.max(initial=0) >= FOUND:
            sorts[place], partner[place] = "repeated", int(own.argmax())
        elif inside[place].max(initial=0) >= FOUND:
            sorts[place] = "crowd"
        elif overlaps[place].max(initial=0) >= FOUND:
            sorts[place], partner[place] = "wrong class", int(overlaps[place].argmax())
        elif own.max(initial=0) >= NEAR:
            sorts[place], partner[place] = "badly placed", int(own.argmax())
        else:
            sorts[place] = "background"
    return Judged(sorts, partner, [number for number in range(len(wanted)) if number not in taken])


def overlap(boxes: Numbers, others: Numbers) -> Numbers:
    """(k, n) intersection over union of boxes x1 y1 x2 y2."""
    common = _common(boxes, others)
    union = _area(boxes)[:, None] + _area(others) - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def share_inside(boxes: Numbers, others: Numbers) -> Numbers:
    """(k, m) the part of each box that lies in each other one."""
    common, own = _common(boxes, others), _area(boxes)[:, None]
    return np.divide(common, own, out=np.zeros_like(common), where=own > 0)


def _common(boxes: Numbers, others: Numbers) -> Numbers:
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    sides: Numbers = (high - low).clip(min=0)
    return sides[..., 0] * sides[..., 1]


def _area(boxes: Numbers) -> Numbers:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _boxes(values: Any) -> Numbers:
    return np.asarray(values, np.float64).reshape(-1, 4)
