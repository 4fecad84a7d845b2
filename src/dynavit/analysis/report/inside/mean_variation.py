"""How far the mean that a norm subtracts is from the tokens (Fig. 3b)."""

from typing import Any

from ..figures.over_layers import lines_plate, paths_of, run_name
from ..page import Table
from ..plate import Chapter
from ..table import number_text
from .left_out import left_out


def mean_variation(found: dict[str, Any]) -> Chapter:
    runs = found["runs"]
    without = left_out(runs, "norm")
    caption = (
        "Distance of the subtracted mean to the tokens, per layer. Bands reach from the 10th to the 90th percentile of tokens."
    )
    caption = " ".join([caption, *without])
    lines = lines_plate("Variation coefficient per layer", caption, "‖x − μ‖ / ‖x‖", runs, "coefficient", ("low", "high"))
    cells = [{layer["path"]: layer["coefficient"] for layer in run["layers"]} for run in runs]
    rows = [[path, *(number_text(run.get(path), ".3f") for run in cells)] for path in paths_of(runs)]
    reasons = [
        f"{run_name(run)}, {layer['path']}: {layer['why']}." for run in runs for layer in run["layers"] if layer.get("why")
    ]
    return Chapter(
        "Distance of the mean to the tokens",
        "For each token x and the mean μ that its norm subtracts from it: ‖x − μ‖ / ‖x‖. Higher: the mean is further away from "
        "the token that it shall describe. 1: subtracting it leaves the token as long as it was.",
        [lines] if lines else [],
        [
            Table(
                "Variation coefficient of the mean", ["norm", *map(run_name, runs)], rows, notes=[*_grouped(reasons), *without]
            )
        ],
    )


def _grouped(reasons: list[str], most: int = 6) -> list[str]:
    return reasons if len(reasons) <= most else [*reasons[:most], f"And {len(reasons) - most} more, for such reasons."]
