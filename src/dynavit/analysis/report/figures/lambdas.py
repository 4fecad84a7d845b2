"""λ during training, for each layer and head (Fig. 4)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..plate import Chapter, Plate
from .canvas import FAINT, WIDTH, colour, series_style
from .numbers import numbers
from .over_layers import LETTER, run_name, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 30  # per line: panels are small
MOST_NAMED = 12  # heads in the legend
LEFT, GAP, TITLE, PANEL, FOOT = 0.34, 0.12, 0.2, 0.72, 0.42  # inches


def lambdas(found: dict[str, Any]) -> Chapter:
    plates = [
        _plate(run, moment, run[moment])
        for run in found["runs"]
        for moment in ("mean", "variance")
        if run[moment] and run[moment]["epochs"]
    ]
    return Chapter(
        "λ during training",
        "λ weighs a token's own statistics, as in LayerNorm (λ = 1), against those of the tokens around it (λ = 0). Each panel "
        "is a layer, each line a head; lines that part show heads that take different roles.",
        plates,
    )


def _plate(run: dict[str, Any], moment: str, found: dict[str, Any]) -> Plate:
    layers = {path: numbers(values) for path, values in found["layers"].items()}
    columns = max(1, min(4, int((WIDTH - LEFT) / (LETTER * max(len(short(path)) for path in layers) + GAP))))
    rows = -(-len(layers) // columns)
    heads = max(values.shape[1] for values in layers.values())
    named = heads if heads <= MOST_NAMED else 0
    legend_rows = -(-named // 6)
    height = rows * (TITLE + PANEL) + FOOT + 0.17 * legend_rows
    width = (WIDTH - LEFT - (columns - 1) * GAP - 0.06) / columns
    some = np.unique(np.linspace(0, len(found["epochs"]) - 1, MOST_POINTS).round().astype(int))
    epochs = numbers(found["epochs"])[some]

    def paint(figure: "Figure") -> None:
        figure.set_layout_engine(None)
        for number, (path, values) in enumerate(layers.items()):
            row, column = divmod(number, columns)
            left, top = LEFT + column * (width + GAP), row * (TITLE + PANEL) + TITLE
            axes = figure.add_axes((left / WIDTH, 1 - (top + PANEL) / height, width / WIDTH, PANEL / height))
            _panel(axes, epochs, values[some])
            axes.set_title(short(path), fontsize=7, loc="left", pad=2)
            if column:
                axes.tick_params(labelleft=False)
            if number + columns < len(layers):
                axes.tick_params(labelbottom=False)
            else:
                axes.set_xlabel("epoch", labelpad=1)
        if named:
            handles, names = axes.get_legend_handles_labels()
            figure.legend(
                handles[:named],
                names[:named],
                loc="lower left",
                ncols=-(-named // legend_rows),
                frameon=False,
                fontsize=7,
                handlelength=1.6,
                columnspacing=0.9,
                borderpad=0,
                borderaxespad=0.1,
            )

    caption = f"λ of the {moment} in {run_name(run)}: a panel for each layer, a line for each head."
    return Plate(f"λ of the {moment} over training, {run_name(run)}", caption, height, paint, run["name"])


def _panel(axes: "Axes", epochs: Any, values: Any) -> None:
    for head, line in enumerate(values.T):
        variable, dashes = series_style(head)
        marker = "o" if len(epochs) == 1 else ""
        axes.plot(
            epochs,
            line,
            color=colour(variable),
            dashes=dashes or (None, None),
            lw=1,
            marker=marker,
            ms=2.5,
            label=f"head {head}",
        )
    axes.axhline(0.5, color=FAINT, lw=0.6, dashes=(2, 2))
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.locator_params(axis="x", integer=True, nbins=3)
    axes.tick_params(labelsize=7, length=2)
