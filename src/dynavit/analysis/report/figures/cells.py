"""Numbers on a grid of shaded cells.

Cells are a palette colour, the more opaque the further the value is from the neutral one. So the page's background is the
neutral colour, and ink stays legible on every cell, light or dark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..blocks import Figure
from .axes import on_axes
from .canvas import HIGH, LOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_OPAQUE = 0.6


@dataclass(frozen=True)
class Cell:
    """`strength` from 0 to 1; blue if `high`, orange if not."""

    row: int
    column: int
    high: bool
    strength: float
    text: str = ""


def cells_figure(
    label: str,
    caption: str,
    height: float,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Cell],
    *,
    xlabel: str,
    ylabel: str = "",
    turned: bool = False,
    scale: bool = False,
) -> Figure:
    """`rows` and `columns` are their names, those of columns upright if `turned`. `scale`: colours from 0 to 1 at the right."""

    def paint(axes: "Axes") -> None:
        for cell in cells:
            _shade(axes, cell)
            if cell.text:
                size = min(7.5, 78 / len(columns))
                axes.text(cell.column, cell.row, cell.text, ha="center", va="center", fontsize=size).set_in_layout(False)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xticks(range(len(columns)), columns, rotation=90 if turned else 0)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        _without_frame(axes)
        if scale:
            _scale(axes)

    return Figure(label, caption, height, on_axes(paint))


def _shade(axes: "Axes", cell: Cell) -> None:
    from matplotlib.patches import Rectangle

    corner, shade = (cell.column - 0.48, cell.row - 0.46), HIGH if cell.high else LOW
    patch = Rectangle(corner, 0.96, 0.92, facecolor=shade, alpha=MOST_OPAQUE * cell.strength, lw=0, clip_on=False)
    axes.add_artist(patch).set_in_layout(False)  # it is inside the axes; measuring hundreds takes seconds


def _scale(axes: "Axes") -> None:
    """From 0 to 1 at the right, 0.5 is neutral."""
    steps = 20
    bar = axes.inset_axes((1.04, 0.0, 0.035, 1.0))
    for step in range(steps):
        middle = (step + 0.5) / steps
        shade, alpha = HIGH if middle > 0.5 else LOW, MOST_OPAQUE * 2 * abs(middle - 0.5)
        bar.axhspan(step / steps, (step + 1) / steps, facecolor=shade, alpha=alpha, lw=0)
    bar.set_ylim(0, 1)
    bar.set_xticks([])
    bar.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    bar.yaxis.tick_right()
    _without_frame(bar)


def _without_frame(axes: "Axes") -> None:
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
