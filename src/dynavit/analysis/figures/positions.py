"""Positional weights of one token, before training under both initialisations and after (Figs. 7 and 8)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..canvas import WIDTH
from .numbers import Numbers, finite, numbers
from .over_layers import LETTER, run_name, short
from .plate import Chapter, Plate
from .sheet import BAR_HEIGHT, GAP, LINE, Scale, Sheet, map_height, tile_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 0.6  # inches of a map
TWO_LINES = 0.25
INITS = {"local": "local", "trunc_normal": "trunc. normal"}
Rows = list[tuple[str, Numbers, list[int] | None]]  # (label, (h, r, c) weights, the token's row and column)


def positions(found: dict[str, Any]) -> Chapter:
    return Chapter(
        "Positional weights",
        "DTN mixes the statistics of all tokens with weights P that depend on where they are. Each map shows the weights that "
        "one token, in the orange frame, gives to all: a bright spot beside it is a local head, an even map weighs all alike.",
        [_plate(run) for run in found["runs"] if run["layers"]],
    )


def _plate(run: dict[str, Any]) -> Plate:
    before = _rows(run, [(_named(init, entry), entry) for init in INITS for entry in run["inits"].get(init, [])])
    after = _rows(run, [(_in_two_lines(layer["path"]), layer | {"values": layer["after"]}) for layer in run["layers"]])
    every = before + after
    margin = LETTER * max(len(line) for label, _, _ in every for line in label.split("\n")) + 0.1
    most = max(len(maps) for _, maps, _ in every)
    width = min(WIDEST, tile_width(most, WIDTH - margin - GAP))
    scale = _scale([maps for _, maps, _ in every], [maps for _, maps, _ in after])
    parts = [(title, rows) for title, rows in (("before training", before), ("after training", after)) if rows]
    height = BAR_HEIGHT + LINE + sum(LINE + sum(_row_height(width, maps) for _, maps, _ in rows) for _, rows in parts)

    def paint(figure: "Figure") -> None:
        sheet = Sheet(figure, height)
        sheet.words(0, 0, run_name(run), fontsize=8.5, fontweight="bold")
        sheet.bar(margin, LINE, scale)
        top = LINE + BAR_HEIGHT
        for title, rows in parts:
            sheet.words(margin, top, f"{title}, heads 0 to {most - 1}" if most > 1 else title)
            top += LINE
            for label, maps, token in rows:
                sheet.words(0, top + (map_height(width, maps) - LINE) / 2, label, fontsize=7, va="center")
                for head, values in enumerate(maps):
                    left = margin + head * (width + GAP)
                    sheet.heat(left, top, width, values, scale)
                    if token:
                        sheet.mark(left, top, width, values, (token[0], token[1]))
                top += _row_height(width, maps)

    row, column = run["token"]
    caption = (
        f"{run_name(run)}: weights of the token in row {row}, column {column} (from 0), one map for each head. Above: before "
        f"training, under both initialisations; this run began with {INITS.get(run['init'], run['init'])}. Below: each "
        "layer after training. Lighter is larger; one colour scale for the whole figure."
    )
    return Plate(f"Positional weights before and after training, {run_name(run)}", caption, height, paint)


def _scale(every: list[Numbers], after: list[Numbers]) -> Scale:
    """Up to the largest weight after training, or the few large ones of an initialisation would make all else look dark."""
    uniform = max(1 / maps[0].size for maps in every)
    high = float(np.max(finite(after), initial=4 * uniform))
    return Scale("weight (square-root scale)", 0.0, high, root=True, more=bool(np.max(finite(every), initial=0.0) > high))


def _named(init: str, entry: dict[str, Any]) -> str:
    return f"{INITS[init]}\n{entry['grid'][0]}×{entry['grid'][1]}"


def _in_two_lines(path: str) -> str:
    """Narrow, for the maps need the room.

    >>> _in_two_lines("blocks.0.norm1"), _in_two_lines("norm")
    ('blocks.0\\nnorm1', 'norm')
    """
    block, _, norm = short(path).rpartition(".")
    return f"{block}\n{norm}" if block else norm


def _row_height(width: float, maps: Numbers) -> float:
    return max(map_height(width, maps), TWO_LINES) + GAP


def _rows(run: dict[str, Any], entries: list[tuple[str, dict[str, Any]]]) -> Rows:
    """The run's token is on the grid of its first layer; on the other grids of a pyramid, entries name their own."""
    tokens = {tuple(run["layers"][0]["grid"]): run["token"]}
    return [(label, numbers(entry["values"]), entry.get("token", tokens.get(tuple(entry["grid"])))) for label, entry in entries]
