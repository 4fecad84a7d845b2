"""The three ways in which annotations spell a mask: polygons, run lengths, run lengths as a text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .coco_tools import coco_tools
from .rle import Mask, area, counts_of, decode

Polygons = list[NDArray[np.float64]]  # x, y, x, y, ... of each part of an object
Segment = Polygons | dict[str, Any] | None  # None: an object without a mask

FEWEST = 6  # numbers of a polygon: three corners
FAR = 1e5  # pixels outside of any image; filling a polygon takes time in proportion to its border


def read_segment(found: Any, height: int, width: int) -> Segment:
    """An annotation's "segmentation", checked. Polygons of less than three corners cover nothing and are left out; what has no
    others has no mask, and neither have run lengths of zeros alone."""
    if not found:
        return None
    if isinstance(found, Mapping):
        return _run_lengths(found, height, width)
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ValueError(f"its segmentation is {type(found).__name__}; polygons are a list, run lengths have size and counts")
    if all(isinstance(number, int | float) for number in found):
        raise ValueError("its segmentation is a list of numbers; a polygon is a list in a list")
    return [polygon for polygon in map(_polygon, found) if len(polygon) >= FEWEST] or None


def _run_lengths(found: Mapping[str, Any], height: int, width: int) -> dict[str, Any] | None:
    size = found.get("size")
    if not isinstance(size, Sequence) or list(size) != [height, width]:
        raise ValueError(f"its mask has the size {size}, and its image {[height, width]}")
    if "counts" not in found:
        raise ValueError("its mask has a size and no counts")
    counts = counts_of(found)
    if (counts < 0).any() or counts.sum() != height * width:
        raise ValueError(f"its run lengths cover {int(counts.sum())} of {height * width} pixels")
    if not counts[1::2].any():
        return None
    spelled = found["counts"] if isinstance(found["counts"], str | bytes) else counts.tolist()  # whole, though written 7.0
    return {"size": [height, width], "counts": spelled}


def _polygon(found: Any) -> NDArray[np.float64]:
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ValueError(f"one of its polygons is {found!r:.40}; expected a list of numbers: x, y, x, y, ...")
    try:
        numbers = np.array(found)
    except ValueError:  # lists of different lengths
        numbers = np.array(None)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iuf"):
        raise ValueError(f"one of its polygons is {found!r:.40}; expected a list of numbers: x, y, x, y, ...")
    if len(numbers) % 2 or not np.isfinite(numbers).all():
        raise ValueError(
            f"one of its polygons has {len(numbers)} numbers, or one that is none; expected pairs: x, y, x, y, ..."
        )
    if len(numbers) and not -FAR < numbers.min() <= numbers.max() < FAR:
        raise ValueError(f"one of its polygons reaches to {max(numbers, key=abs):g} pixels, far outside of any image")
    return numbers.astype(np.float64)


def area_of(segment: Segment) -> float | None:
    """Pixels of run lengths, what lies inside polygons; None without a mask."""
    if segment is None:
        return None
    if isinstance(segment, dict):
        return float(area(segment))
    return float(sum(abs(_inside(polygon[::2], polygon[1::2])) for polygon in segment))


def _inside(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """What a polygon encloses, by the shoelace formula."""
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def mask_of(segment: Segment, height: int, width: int) -> Mask:
    """(height, width), True inside. Polygons need the package that judges detections: others fill borders differently."""
    if segment is None:
        return np.zeros((height, width), bool)
    if isinstance(segment, dict):
        return decode(segment)
    tools = coco_tools("filling polygons (loading.options.masks)").mask
    parts = tools.frPyObjects([polygon.tolist() for polygon in segment], height, width)
    return tools.decode(tools.merge(parts)).astype(bool)


def plain_segment(segment: Segment, height: int, width: int) -> Any:
    """As JSON and as the evaluator takes it; an object without a mask gets an empty one, which nothing matches."""
    if segment is None:
        return {"size": [height, width], "counts": [height * width]}
    return segment if isinstance(segment, dict) else [polygon.tolist() for polygon in segment]
