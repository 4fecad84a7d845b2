"""Token magnitudes after each norm (Fig. 1): maps per head, and how much they vary in each layer."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..blocks import Figure, Figures, Section, Table, Text
from ..figures.numbers import Numbers, finite, on_grid, relative
from ..figures.over_layers import LayerLine, layers_figure
from ..figures.sheet import BAR_HEIGHT, GAP, LINE, Scale, Sheet, draw_layers, layers_height
from ..words import number_text
from .runs import left_out, paths_of, run_name, values_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

PICTURE = 1.0  # inches


def magnitudes(found: dict[str, Any]) -> Section:
    runs = found["runs"]
    scale = _scale([relative(each["values"]) for run in runs for each in run["maps"]])
    maps = [
        Figures([_maps_figure(run, number, shown, scale) for run in runs if any(m["shown"] == number for m in run["maps"])])
        for number, shown in enumerate(found["shown"])
    ]
    paths, without = paths_of(runs), left_out(runs, "norm")
    caption = "Variation of token magnitudes after each norm. Higher: tokens differ more in magnitude. 0: all are equally long."
    lines = layers_figure(
        "Variation of token magnitudes per layer",
        " ".join([caption, *without]),
        "coefficient of variation",
        paths,
        [LayerLine(run_name(run), values_of(run, "cv", paths)) for run in runs],
    )
    cells = [{layer["path"]: layer["cv"] for layer in run["layers"]} for run in runs]
    rows = [[path, *(number_text(run.get(path), ".3f") for run in cells)] for path in paths]
    note = "Standard deviation of the token magnitudes of an image, divided by their mean; the mean over images."
    table = Table("Coefficient of variation of token magnitudes", ["norm", *map(run_name, runs)], rows, notes=[note, *without])
    text = Text(
        "A norm may make all tokens of an image equally long, or leave some longer than others. Heat maps show the magnitude "
        "of each token after a norm, head by head, relative to the mean of that head: one even colour means all are alike."
    )
    return Section("Token magnitudes", [text, *maps, *([Figures([lines])] if lines else []), table])


def _scale(maps: list[Numbers]) -> Scale:
    """The same on both sides of 1, where all tokens are alike; a few extremes shall not make everything else look even."""
    away = np.abs(finite(maps) - 1)
    reach = min(1.0, max(0.05, float(np.quantile(away, 0.99)))) if len(away) else 1.0
    return Scale("magnitude / mean of its head", 1 - reach, 1 + reach, more=bool(np.max(away, initial=0.0) > reach))


def _maps_figure(run: dict[str, Any], number: int, shown: dict[str, Any], scale: Scale) -> Figure:
    variation = {layer["path"]: layer["cv"] for layer in run["layers"]}
    layers = [
        (
            f"{each['path']}, variation {number_text(variation.get(each['path']), '.3f')}",
            on_grid(relative(each["values"]), each["grid"]),
        )
        for each in run["maps"]
        if each["shown"] == number
    ]
    head = PICTURE + GAP

    def paint(figure: "MatplotlibFigure") -> None:
        sheet = Sheet(figure, head + layers_height(layers))
        sheet.picture(0, 0, PICTURE, shown["image"])
        sheet.title(PICTURE + 0.15, 0, run_name(run))
        sheet.words(PICTURE + 0.15, LINE, f"class: {shown['target']}")
        sheet.bar(PICTURE + 0.15, PICTURE - BAR_HEIGHT, scale)
        draw_layers(sheet, head, layers, scale)

    caption = (
        f"{run_name(run)}, image {number + 1} ({shown['target']}): a map for each head, from head 0. Norm: {run['norm']}. "
        "Yellow tokens are longer than the mean of their head, blue ones shorter. The colours mean the same in all runs."
    )
    return Figure(f"Token magnitudes in {run_name(run)}, image {number + 1}", caption, head + layers_height(layers), paint)
