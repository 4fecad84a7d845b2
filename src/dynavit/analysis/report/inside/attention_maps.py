"""Patches that attention looks at on single images: by the heads of the last layer, and by rollout over all layers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..blocks import Figure, Figures, Section, Text
from ..figures.numbers import Numbers, finite, on_grid, relative
from ..figures.sheet import BAR_HEIGHT, GAP, LINE, Scale, Sheet, draw_layers, layers_height, map_height
from .runs import run_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

PICTURE = 1.0  # inches


def attention_maps(found: dict[str, Any]) -> Section:
    runs = found["runs"]
    maps = [relative(each["values"]) for run in runs for each in (*run["maps"], *run["rollout"])]
    values = finite(maps)
    high = max(4.0, float(np.quantile(values, 0.99))) if len(values) else 4.0
    scale = Scale("times the mean of its map", 0.0, high, root=True, more=bool(np.max(values, initial=0.0) > high))
    text = Text(
        "Which patches the last layer attends to, head by head, and which ones all layers together (rollout: the attention of "
        "the layers multiplied, with the residual connections). Yellow patches get the most attention."
    )
    figures = [
        Figures([_figure(run, number, shown, scale) for run in runs if any(m["shown"] == number for m in run["maps"])])
        for number, shown in enumerate(found["shown"])
    ]
    return Section("Attention maps", [text, *figures])


def _figure(run: dict[str, Any], number: int, shown: dict[str, Any], scale: Scale) -> Figure:
    layers = [(each["path"], _maps(each)) for each in run["maps"] if each["shown"] == number]
    rolled = [_maps(each) for each in run["rollout"] if each["shown"] == number]
    head = LINE + PICTURE * max([1.0, *(map_height(1, maps) for maps in rolled)]) + GAP

    def paint(figure: "MatplotlibFigure") -> None:
        sheet = Sheet(figure, head + layers_height(layers))
        sheet.words(0, 0, "input")
        sheet.picture(0, LINE, PICTURE, shown["image"])
        left = PICTURE + 0.1
        for maps in rolled:
            sheet.words(left, 0, "rollout")
            sheet.heat(left, LINE, PICTURE, maps[0], scale)
            left += PICTURE + 0.15
        sheet.title(left, 0, run_name(run))
        sheet.words(left, LINE, f"class: {shown['target']}")
        sheet.bar(left, head - GAP - BAR_HEIGHT, scale)
        draw_layers(sheet, head, layers, scale)

    caption = (
        f"{run_name(run)}, image {number + 1} ({shown['target']}): attention of the {run['of']}, a map for each head, from "
        "head 0. All maps and runs share one colour scale, by square roots; 1 is uniform attention."
    )
    return Figure(f"Attention maps of {run_name(run)}, image {number + 1}", caption, head + layers_height(layers), paint)


def _maps(each: dict[str, Any]) -> Numbers:
    """(h, r, c) relative to the mean of each map."""
    return on_grid(relative(each["values"]), each["grid"])
