"""Comparisons at equal time: every setting gets the epochs that fit into the training time of the baseline.

The cost of a step is measured once, side by side, and stored before the first run. A comparison that is resumed goes on with
the stored cost, whatever the machine is doing then, so a run never changes its length.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..common.files import read_json
from .directory import ComparisonDirectory

if TYPE_CHECKING:
    from .compare import CompareConfig, Setting


def check_same_equality(directory: ComparisonDirectory, config: "CompareConfig") -> None:
    """ValueError if the directory holds a comparison at equal epochs and time is asked for, or the other way round."""
    stored = _stored(directory)
    before = stored.get("equal", "epochs") if stored else config.equal
    if before != config.equal:
        raise ValueError(
            f"{directory.path} holds a comparison at equal {before}; for one at equal {config.equal} choose another --out"
        )


def costs_at_equal_time(
    directory: ComparisonDirectory,
    epochs: float,
    baseline: "Setting",
    settings: Sequence["Setting"],
    measure: Callable[[Sequence["Setting"]], dict[str, Any]],
) -> dict[str, Any]:
    """{"cost": a row for each setting with its "epochs", "machine"}. Settings without a stored row are measured beside the
    baseline by `measure`; those that cannot be built have none."""
    stored = _stored(directory)
    rows = {row["name"]: row for row in stored.get("cost") or [] if {"epochs", "step_ratio"} <= row.keys()}
    own = rows.get(baseline.name)
    if rows and (own is None or own["step_ratio"] != 1):
        raise ValueError(
            f"{directory.path} compares at the time of another baseline than {baseline.name}; choose another --out"
        )
    if own is not None and own["epochs"] != epochs:
        raise ValueError(
            f"{directory.path} compares at the time of {own['epochs']:g} epochs of {baseline.name}, not {epochs:g}; "
            "choose another --out"
        )
    machine = stored.get("machine")
    if missing := [setting for setting in settings if setting.name not in rows and setting is not baseline]:
        found = measure([baseline, *missing])
        rows = {row["name"]: {**row, "epochs": epochs_that_fit(epochs, row["step_ratio"])} for row in found["cost"]} | rows
        machine = machine or found["machine"]
    order = [setting.name for setting in settings]
    kept = sorted(rows.values(), key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
    return {"cost": kept, "machine": machine}


def epochs_that_fit(epochs: float, step_ratio: float) -> float:
    """Epochs of a setting whose step costs `step_ratio` times the baseline's, in the time of the baseline's `epochs`."""
    return round(epochs / step_ratio, 4)


def _stored(directory: ComparisonDirectory) -> dict[str, Any]:
    """comparison.json, {} if there is none yet."""
    from ..analysis.report.shapes import ComparisonFile  # brings the whole report

    return read_json(directory.comparison_file, ComparisonFile) if directory.is_comparison() else {}
