"""Positional weights of one token, before and after training, and those of the other initialisation (Figs. 7 and 8)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..blocks import Figure, Figures, Section, Text
from ..figures.axes import LETTER, short
from ..figures.canvas import TINY, WIDTH
from ..figures.numbers import Numbers, finite, numbers
from ..figures.sheet import BAR_HEIGHT, GAP, LINE, Scale, Sheet, map_height, tile_width
from .runs import run_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

WIDEST = 0.6  # inches of a map
LABEL_LINE = 0.125
INITS = {"local": "local", "trunc_normal": "trunc. normal"}
Rows = list[tuple[str, Numbers, list[int] | None]]  # (label, (h, r, c) weights, the token's row and column)


def positions(found: dict[str, Any]) -> Section:
    text = Text(
        "DTN mixes the statistics of all tokens with weights P that depend on where they are. Each map shows the weights that "
        "one token, in the orange frame, gives to all: a bright spot beside it is a local head, an even map weighs all alike."
    )
    return Section("Positional weights", [text, Figures([_figure(run) for run in found["runs"] if run["layers"]])])


def _figure(run: dict[str, Any]) -> Figure:
    parts, order = _parts(run)
    every = [row for _, rows in parts for row in rows]
    margin = LETTER * max(len(line) for label, _, _ in every for line in label.split("\n")) + 0.1
    width = min(WIDEST, tile_width(max(len(maps) for _, maps, _ in every), WIDTH - margin - GAP))
    scale = _scale([maps for _, maps, _ in every], [numbers(layer["after"]) for layer in run["layers"]])
    height = BAR_HEIGHT + LINE + sum(LINE + sum(_row_height(width, row) + GAP for row in rows) for _, rows in parts)

    def paint(figure: "MatplotlibFigure") -> None:
        sheet = Sheet(figure, height)
        sheet.title(0, 0, run_name(run))
        sheet.bar(margin, LINE, scale)
        top = LINE + BAR_HEIGHT
        for title, rows in parts:
            sheet.words(0, top, title)
            top += LINE
            for row in rows:
                label, maps, token = row
                tall = _row_height(width, row)
                sheet.words(0, top + (tall - LINE) / 2, label, fontsize=TINY, va="center")
                for head, values in enumerate(maps):
                    corner = margin + head * (width + GAP), top + (tall - map_height(width, maps)) / 2
                    sheet.heat(*corner, width, values, scale)
                    if token:
                        sheet.mark(*corner, width, values, (token[0], token[1]))
                top += tall + GAP

    row, column = run["token"]
    caption = (
        f"{run_name(run)}: weights of the token in row {row}, column {column} (from 0), a map for each head, from head 0. "
        f"{order} Lighter is larger; one colour scale for the whole figure."
    )
    return Figure(f"Positional weights before and after training, {run_name(run)}", caption, height, paint)


def _parts(run: dict[str, Any]) -> tuple[list[tuple[str, Rows]], str]:
    """Titles with their rows, and a sentence about their order. How the layers began is shown once, if they began alike."""
    layers = run["layers"]
    shapes: dict[Any, dict[str, Any]] = {}  # (heads, grid): the first layer of that kind
    for layer in layers:
        shapes.setdefault((len(layer["before"]), *layer["grid"]), layer)
    alike = all(layer["before"] == shapes[(len(layer["before"]), *layer["grid"])]["before"] for layer in layers)
    began, other = INITS[run["init"]], next(init for init in INITS if init != run["init"])
    compared = (
        f"for comparison, the beginning with {INITS[other]}",
        _rows(run, [(_size(entry["grid"]), entry["values"], entry) for entry in run["inits"][other]]),
    )
    if alike:
        before = [(_size(layer["grid"]), layer["before"], layer) for layer in shapes.values()]
        after = [(_in_two_lines(layer["path"]), layer["after"], layer) for layer in layers]
        return (
            [(f"before training, {began}", _rows(run, before)), compared, ("after training", _rows(run, after))],
            f"From top to bottom: before training, when all its layers of a grid began alike ({began}); for comparison, how "
            f"they begin with {INITS[other]}; each layer after training.",
        )
    pairs = []
    for layer in layers:
        pairs += [(_in_two_lines(layer["path"]) + "\nbefore", layer["before"], layer), ("after", layer["after"], layer)]
    return (
        [compared, (f"before ({began}) and after training", _rows(run, pairs))],
        f"At the top, for comparison, how layers begin with {INITS[other]}. Then two rows for each layer of this run, before "
        f"training ({began}) and after.",
    )


def _scale(every: list[Numbers], after: list[Numbers]) -> Scale:
    """Up to the largest weight after training, or the few large ones of an initialisation would make all else look dark."""
    uniform = max(1 / maps[0].size for maps in every)
    high = float(np.max(finite(after), initial=4 * uniform))
    return Scale("weight (square-root scale)", 0.0, high, root=True, more=bool(np.max(finite(every), initial=0.0) > high))


def _size(grid: list[int]) -> str:
    return f"{grid[0]}×{grid[1]}"


def _in_two_lines(path: str) -> str:
    """Narrow, for the maps need the room.

    >>> _in_two_lines("blocks.0.norm1"), _in_two_lines("norm")
    ('blocks.0\\nnorm1', 'norm')
    """
    block, _, norm = short(path).rpartition(".")
    return f"{block}\n{norm}" if block else norm


def _row_height(width: float, row: tuple[str, Numbers, Any]) -> float:
    label, maps, _ = row
    return max(map_height(width, maps), LABEL_LINE * len(label.split("\n")))


def _rows(run: dict[str, Any], entries: list[tuple[str, Any, dict[str, Any]]]) -> Rows:
    """From labels, weights and whose they are. The run's token is on the grid of its first layer; on the other grids of a
    pyramid, layers name their own."""
    tokens = {tuple(run["layers"][0]["grid"]): run["token"]}
    return [(label, numbers(values), of.get("token", tokens.get(tuple(of["grid"])))) for label, values, of in entries]
