"""Token magnitudes after each norm (Fig. 1): maps per head, and how much they vary in each layer."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..figures.numbers import Numbers, finite, on_grid, relative
from ..figures.over_layers import lines_plate, paths_of, run_name
from ..figures.sheet import BAR_HEIGHT, GAP, LINE, Scale, Sheet, draw_maps, maps_height
from ..page import Table
from ..plate import Chapter, Plate
from ..table import number_text
from .left_out import left_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = 1.0  # inches


def magnitudes(found: dict[str, Any]) -> Chapter:
    runs = found["runs"]
    scale = _scale([relative(each["values"]) for run in runs for each in run["maps"]])
    plates = [
        _maps_plate(run, number, shown, scale)
        for number, shown in enumerate(found["shown"])
        for run in runs
        if any(each["shown"] == number for each in run["maps"])
    ]
    caption = "Variation of token magnitudes after each norm. Higher: tokens differ more in magnitude. 0: all are equally long."
    without = left_out(runs, "norm")
    caption = " ".join([caption, *without])
    lines = lines_plate("Variation of token magnitudes per layer", caption, "coefficient of variation", runs, "cv")
    cells = [{layer["path"]: layer["cv"] for layer in run["layers"]} for run in runs]
    rows = [[path, *(number_text(run.get(path), ".3f") for run in cells)] for path in paths_of(runs)]
    note = "Standard deviation of the token magnitudes of an image, divided by their mean; the mean over images."
    table = Table("Coefficient of variation of token magnitudes", ["norm", *map(run_name, runs)], rows, notes=[note, *without])
    return Chapter(
        "Token magnitudes",
        "A norm may make all tokens of an image equally long, or leave some longer than others. Heat maps show the magnitude "
        "of each token after a norm, head by head, relative to the mean of that head: one even colour means all are alike.",
        [*plates, *([lines] if lines else [])],
        [table],
    )


def _scale(maps: list[Numbers]) -> Scale:
    """The same on both sides of 1, where all tokens are alike; a few extremes shall not make everything else look even."""
    away = np.abs(finite(maps) - 1)
    reach = min(1.0, max(0.05, float(np.quantile(away, 0.99)))) if len(away) else 1.0
    return Scale("magnitude / mean of its head", 1 - reach, 1 + reach, more=bool(np.max(away, initial=0.0) > reach))


def _maps_plate(run: dict[str, Any], number: int, shown: dict[str, Any], scale: Scale) -> Plate:
    variation = {layer["path"]: layer["cv"] for layer in run["layers"]}
    layers = [
        (each["path"], on_grid(relative(each["values"]), each["grid"])) for each in run["maps"] if each["shown"] == number
    ]
    height = PICTURE + GAP + sum(LINE + maps_height(maps) for _, maps in layers)

    def paint(figure: "Figure") -> None:
        sheet = Sheet(figure, height)
        sheet.picture(0, 0, PICTURE, shown["image"])
        sheet.words(PICTURE + 0.15, 0, run_name(run), fontsize=8.5, fontweight="bold")
        sheet.words(PICTURE + 0.15, LINE, f"class: {shown['target']}")
        sheet.bar(PICTURE + 0.15, PICTURE - BAR_HEIGHT, scale)
        top = PICTURE + GAP
        for path, maps in layers:
            sheet.words(0, top, f"{path}, variation {number_text(variation.get(path), '.3f')}")
            draw_maps(sheet, top + LINE, maps, scale)
            top += LINE + maps_height(maps)

    caption = (
        f"{run_name(run)}, image {number + 1} ({shown['target']}): a map for each head, from head 0. Norm: {run['norm']}. "
        "Yellow tokens are longer than the mean of their head, blue ones shorter. The colours mean the same in all runs."
    )
    return Plate(f"Token magnitudes in {run_name(run)}, image {number + 1}", caption, height, paint, f"image {number}")
