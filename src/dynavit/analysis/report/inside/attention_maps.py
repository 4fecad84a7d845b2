"""Where attention looks on single images: the heads of the last layer, and rollout over all layers."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..figures.numbers import Numbers, finite, on_grid, relative
from ..figures.over_layers import run_name
from ..figures.sheet import BAR_HEIGHT, GAP, LINE, Scale, Sheet, draw_maps, map_height, maps_height
from ..plate import Chapter, Plate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = 1.0  # inches


def attention_maps(found: dict[str, Any]) -> Chapter:
    runs = found["runs"]
    maps = [relative(each["values"]) for run in runs for each in (*run["maps"], *run["rollout"])]
    values = finite(maps)
    high = max(4.0, float(np.quantile(values, 0.99))) if len(values) else 4.0
    scale = Scale("times the mean of its map", 0.0, high, root=True, more=bool(np.max(values, initial=0.0) > high))
    plates = [
        _plate(run, number, shown, scale)
        for number, shown in enumerate(found["shown"])
        for run in runs
        if any(each["shown"] == number for each in run["maps"])
    ]
    return Chapter(
        "Attention maps",
        "Which patches the last layer attends to, head by head, and which ones all layers together (rollout: the attention of "
        "the layers multiplied, with the residual connections). Yellow patches get the most attention.",
        plates,
    )


def _plate(run: dict[str, Any], number: int, shown: dict[str, Any], scale: Scale) -> Plate:
    layers = [_maps(each) for each in run["maps"] if each["shown"] == number]
    rolled = [_maps(each) for each in run["rollout"] if each["shown"] == number]
    head = LINE + PICTURE * max([1.0, *(map_height(1, maps) for _, maps in rolled)]) + GAP
    height = head + sum(LINE + maps_height(maps) for _, maps in layers)

    def paint(figure: "Figure") -> None:
        sheet = Sheet(figure, height)
        sheet.words(0, 0, "input")
        sheet.picture(0, LINE, PICTURE, shown["image"])
        left = PICTURE + 0.1
        for _, maps in rolled:
            sheet.words(left, 0, "rollout")
            sheet.heat(left, LINE, PICTURE, maps[0], scale)
            left += PICTURE + 0.15
        sheet.words(left, 0, run_name(run), fontsize=8.5, fontweight="bold")
        sheet.words(left, LINE, f"class: {shown['target']}")
        sheet.bar(left, head - GAP - BAR_HEIGHT, scale)
        top = head
        for path, maps in layers:
            sheet.words(0, top, path)
            draw_maps(sheet, top + LINE, maps, scale)
            top += LINE + maps_height(maps)

    caption = (
        f"{run_name(run)}, image {number + 1} ({shown['target']}): attention of the {run['of']}, a map for each head, from "
        "head 0. All maps and runs share one colour scale, by square roots; 1 is uniform attention."
    )
    return Plate(f"Attention maps of {run_name(run)}, image {number + 1}", caption, height, paint, f"image {number}")


def _maps(each: dict[str, Any]) -> tuple[str, Numbers]:
    return each.get("path", ""), on_grid(relative(each["values"]), each["grid"])
