"""Distance of the mean that a norm subtracts to the tokens (Fig. 3b)."""

from typing import Any

from ..blocks import Block, Figures, Section, Table, Text
from ..figures.over_layers import LayerLine, layers_figure
from ..words import number_text
from .runs import left_out, paths_of, run_name, values_of

MOST_REASONS = 6


def mean_variation(found: dict[str, Any]) -> Section:
    runs = found["runs"]
    paths, without = paths_of(runs), left_out(runs, "norm")
    caption = (
        "Distance of the subtracted mean to the tokens, per layer. Bands reach from the 10th to the 90th percentile of tokens."
    )
    lines = [
        LayerLine(
            run_name(run),
            values_of(run, "coefficient", paths),
            (values_of(run, "low", paths), values_of(run, "high", paths)),
        )
        for run in runs
    ]
    figure = layers_figure("Variation coefficient per layer", " ".join([caption, *without]), "‖x − μ‖ / ‖x‖", paths, lines)
    cells = [{layer["path"]: layer["coefficient"] for layer in run["layers"]} for run in runs]
    rows = [[path, *(number_text(run.get(path), ".3f") for run in cells)] for path in paths]
    reasons = [
        f"{run_name(run)}, {layer['path']}: {layer['why']}." for run in runs for layer in run["layers"] if layer.get("why")
    ]
    if len(reasons) > MOST_REASONS:
        reasons[MOST_REASONS:] = [f"And {len(reasons) - MOST_REASONS} more, for such reasons."]
    blocks: list[Block] = [
        Text(
            "For each token x and the mean μ that its norm subtracts from it: ‖x − μ‖ / ‖x‖. Higher: the mean is further away "
            "from the token that it shall describe. 1: subtracting it leaves the token as long as it was."
        )
    ]
    if figure:
        blocks.append(Figures([figure]))
    header = ["norm", *map(run_name, runs)]
    blocks.append(Table("Variation coefficient of the mean", header, rows, notes=[*reasons, *without]))
    return Section("Distance of the mean to the tokens", blocks)
