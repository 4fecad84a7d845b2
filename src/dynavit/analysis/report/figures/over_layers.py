"""One value for each layer, a line for each run."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..plate import Plate
from .canvas import WIDTH, colour, series_style
from .numbers import Numbers, finite, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = dict[str, Any]

MOST_LABELS = 26  # beside each other
LETTER = 0.062  # inches, of the smallest text


def run_name(run: Run) -> str:
    """With its norm, if no part of the name tells it.

    >>> run_name({"name": "dtn-seed0", "norm": "dtn"}), run_name({"name": "main", "norm": "in"})
    ('dtn-seed0', 'main (in)')
    """
    name, norm = (" ".join(["", *re.split(r"[\W_]+", text), ""]) for text in (run["name"], run["norm"]))
    return run["name"] if not run["norm"] or norm in name else f"{run['name']} ({run['norm']})"


def paths_of(runs: Sequence[Run]) -> list[str]:
    """The layers of all runs, in the order of the models."""
    return list(dict.fromkeys(layer["path"] for run in runs for layer in run["layers"]))


def lines_plate(
    label: str, caption: str, ylabel: str, runs: Sequence[Run], value: str, band: tuple[str, str] | None = None
) -> Plate | None:
    """`value` of each layer, with a band from one name to the other if given; None if no layer has one."""
    paths = paths_of(runs)

    def of(run: Run, name: str) -> Numbers:
        known = {layer["path"]: layer[name] for layer in run["layers"]}
        return numbers([known.get(path) for path in paths])

    shown = [(number, run) for number, run in enumerate(runs) if len(finite([of(run, value)]))]
    if not shown:
        return None

    def paint(figure: "Figure") -> None:
        axes = figure.add_subplot()
        for number, run in shown:
            variable, dashes = series_style(number)
            style: dict[str, Any] = {"color": colour(variable), "dashes": dashes or (None, None), "label": run_name(run)}
            axes.plot(range(len(paths)), of(run, value), "o-", ms=3.2, mew=0, lw=1.3, **style)
            if band:
                low, high = (of(run, name) for name in band)
                axes.fill_between(range(len(paths)), low, high, color=colour(variable), alpha=0.13, lw=0)
        axes.set_ylim(0, None)
        axes.set_ylabel(ylabel, labelpad=6)
        axes.grid(axis="y")
        layer_axis(axes, paths)
        legend(figure, [run_name(run) for _, run in shown])

    return Plate(label, caption, 2.3 + names_height(paths) + legend_height([run_name(run) for _, run in shown]), paint)


def layer_axis(axes: "Axes", paths: Sequence[str]) -> None:
    """The layers from left to right, by name as far as there is room."""
    step = -(-len(paths) // MOST_LABELS)
    axes.set_xticks(range(0, len(paths), step), [short(path) for path in paths[::step]], rotation=90, fontsize=7)
    axes.set_xlim(-0.6, len(paths) - 0.4)
    axes.tick_params(axis="x", length=2)


def names_height(paths: Sequence[str]) -> float:
    return LETTER * max(len(short(path)) for path in paths)


def short(path: str, most: int = 24) -> str:
    """
    >>> short("blocks.0.norm1"), short("model.backbone.stages.2.blocks.11.norm1")
    ('blocks.0.norm1', '…tages.2.blocks.11.norm1')
    """
    return path if len(path) <= most else "…" + path[1 - most :]


def legend(figure: "Figure", names: Sequence[str]) -> None:
    if len(names) > 1:
        figure.legend(loc="outside upper left", ncols=_columns(names), frameon=False, fontsize=8, handlelength=2.4)


def legend_height(names: Sequence[str]) -> float:
    return 0.17 * -(-len(names) // _columns(names)) + 0.1 if len(names) > 1 else 0.0


def _columns(names: Sequence[str]) -> int:
    return max(1, int(WIDTH / (0.55 + 0.075 * max(map(len, names)))))
