"""Words and pictures from files, as every section shows them."""

from collections.abc import Sequence
from typing import Any

from .page import Sample
from .table import NOTHING

SPLITS = {"val": "validation split", "test": "test split", "train": "training split"}


def percent(fraction: float | None) -> str:
    return NOTHING if fraction is None else f"{100 * fraction:.2f}"


def samples_of(shown: Sequence[dict[str, Any]], classes: Sequence[str]) -> list[Sample]:
    """Stored images with what a model made of them. Addresses outside the page are left out."""

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
