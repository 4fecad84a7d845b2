"""Words and pictures as every section shows them: numbers, splits, metrics, samples."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...common.metric import NOTHING, Metric
from ..statistics import mean, standard_error
from .blocks import Sample

SPLITS = {"val": "validation split", "test": "test split", "train": "training split"}
ERROR = Metric("error", "error", "smaller", percent=True)


def split_name(split: str) -> str:
    return SPLITS.get(split, f"split {split}")


# ---- Numbers


def percent(fraction: float | None) -> str:
    return NOTHING if fraction is None else f"{100 * fraction:.2f}"


def number_text(number: float | None, form: str, unit: str = "") -> str:
    return NOTHING if number is None else f"{number:{form}}{unit}"


def integer_text(number: int | None) -> str:
    return NOTHING if number is None else f"{number:,}"


def signed(number: float, digits: int = 2) -> str:
    """
    >>> signed(1.234), signed(-1.234), signed(-0.001), signed(-0.001, digits=3)
    ('+1.23', '−1.23', '0.00', '−0.001')
    """
    text = f"{number:+.{digits}f}".replace("-", "−")
    return text[1:] if float(text[1:]) == 0 else text


def mean_text(values: Sequence[float], metric: Metric) -> str:
    """The mean, and its standard error if there are several values.

    >>> [mean_text(values, ERROR) for values in ([0.97, 0.98, 0.99], [0.97], [])]
    ['98.00 ± 0.58', '97.00', '–']
    """
    if not values:
        return NOTHING
    error = standard_error(values)
    return metric.number(mean(values)) + ("" if error is None else f" ± {metric.number(error)}")


def seeds_text(finished: int, planned: int) -> str:
    return str(finished) if finished == planned else f"{finished} of {planned}"


def speeds(evaluation: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Images per second of the model alone, and with loading. Older evaluations have measured only the second.

    >>> speeds({"throughput": {"model_images_per_second": 209.0, "images_per_second_with_loading": 29.0}})
    (209.0, 29.0)
    >>> speeds({"throughput": {"images_per_second": 29.0}}), speeds({})
    ((None, 29.0), (None, None))
    """
    found = evaluation.get("throughput") or {}
    with_loading = found.get("images_per_second_with_loading", found.get("images_per_second"))
    return found.get("model_images_per_second"), with_loading


# ---- Metrics


def plain_name(metric: Metric) -> str:
    """The label without its unit, to begin a sentence with.

    >>> plain_name(Metric("angle", "angle error, degrees")), plain_name(Metric("top1", "top-1", percent=True))
    ('Angle error', 'Top-1')
    """
    name = metric.label.partition(", ")[0]
    return name[:1].upper() + name[1:]


def heading_on(metric: Metric, split: str) -> str:
    """A heading that names the split too, in front of the unit.

    >>> heading_on(Metric("angle", "angle error, degrees"), "test"), heading_on(Metric("iou", "IoU", percent=True), "val")
    ('angle error on the test split, degrees', 'IoU on the validation split, %')
    """
    name, comma, unit = metric.heading.partition(", ")
    return f"{name} on the {split_name(split)}{comma}{unit}"


def difference_unit(metric: Metric) -> str:
    """The unit of a difference, empty if it has none.

    >>> [difference_unit(Metric("a", label, percent=label == "top-1")) for label in ("top-1", "angle error, degrees", "loss")]
    ['percentage points', 'degrees', '']
    """
    return "percentage points" if metric.percent else metric.label.partition(", ")[2]


def direction(metric: Metric) -> str:
    return "Higher is better" if metric.better == "larger" else "Lower is better"


# ---- Pictures


def samples_of(shown: Sequence[dict[str, Any]], classes: Sequence[str]) -> list[Sample]:
    """Stored images with their class and the prediction of a model. Addresses outside the page are left out."""

    def class_name(value: Any) -> str:
        return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)

    return [
        Sample(
            each["image"],
            class_name(each["target"]),
            class_name(each["prediction"]),
            f"{100 * each['confidence']:.0f}\u00a0%",
        )
        for each in shown
        if str(each.get("image", "")).startswith("data:image/")
    ]
