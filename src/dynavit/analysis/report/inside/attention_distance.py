"""Mean attention distance of each head (Fig. 2)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ...measures.attention_distance import LOCAL
from ..blocks import Figure, Figures, Section, Table, Text
from ..figures.axes import layer_axis, names_height, on_axes, title
from ..figures.canvas import FAINT, HIGH, LOW
from ..figures.numbers import numbers
from ..words import percent
from .runs import left_out, run_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPREAD = 0.38  # of the heads of a layer to both sides


def attention_distance(found: dict[str, Any]) -> Section:
    runs = found["runs"]
    farthest = max(
        np.nanmax([0.0, layer["uniform"] * layer["unit"], *(numbers(layer["distance"]) * layer["unit"])])
        for run in runs
        for layer in run["layers"]
    )
    grids = {tuple(layer["grid"]) for run in runs for layer in run["layers"]}
    finest = "{}×{}".format(*max(grids)) if len(grids) > 1 else ""
    rows = []
    for run in runs:
        local = [head for layer in run["layers"] for head in layer["local"]]
        rows.append([run_name(run), percent(run["local_share"]), str(sum(local)), str(len(local))])
    note = "A head is local if its mean distance is below half of that of uniform attention on the same grid."
    notes = [note, *left_out(runs, "attention")]
    text = Text(
        "How far a head looks: the distance between a patch and those it attends to, weighted by attention and averaged over "
        "patches and images. Heads near the bottom look at their neighbourhood, heads near the dashed line everywhere."
    )
    figures = Figures([_figure(run, 1.06 * farthest, finest) for run in runs])
    table = Table("Local heads", ["run", "local heads, %", "local heads", "heads"], rows, notes=notes)
    return Section("Attention distance", [text, figures, table])


def _figure(run: dict[str, Any], farthest: float, finest: str) -> Figure:
    """`finest`: the grid whose patches distances are counted in, if there are several."""
    paths = [layer["path"] for layer in run["layers"]]

    def paint(axes: "Axes") -> None:
        for place, layer in enumerate(run["layers"]):
            reach, uniform = (place - 0.5, place + 0.5), layer["uniform"] * layer["unit"]
            axes.fill_between(reach, 0, LOCAL * uniform, color=FAINT, alpha=0.2, lw=0)
            axes.plot(reach, (uniform, uniform), color=FAINT, lw=1, dashes=(4, 2))
            distance, local = numbers(layer["distance"]) * layer["unit"], np.array(layer["local"], dtype=bool)
            order = np.argsort(distance)
            places = place + np.linspace(-SPREAD, SPREAD, len(order)) if len(order) > 1 else np.array([place])
            for shade, kind in ((LOW, local[order]), (HIGH, ~local[order])):
                size = 3.6 if len(order) * len(paths) < 100 else 2.6
                axes.plot(places[kind], distance[order][kind], "o", color=shade, ms=size, mew=0)
        axes.set_ylim(0, farthest)
        axes.set_ylabel(f"mean distance,\npatches of the {finest} grid" if finest else "mean distance, patches")
        axes.grid(axis="y")
        title(axes, run_name(run))
        layer_axis(axes, paths)
        axes.set_xlim(-0.5, len(paths) - 0.5)

    share = 100 * run["local_share"]
    caption = (
        f"{run_name(run)}: a dot for each head, sorted within each layer. {share:.0f} % of the heads are local (orange, in the "
        "shaded band). Dashed: uniform attention."
    )
    if finest:
        caption += f" Distances are in patches of the finest grid that is shown, {finest}."
    caption = " ".join([caption, *left_out([run], "attention")])
    label = f"Mean attention distance of each head, {run_name(run)}"
    return Figure(label, caption, 2.5 + names_height(paths), on_axes(paint))
