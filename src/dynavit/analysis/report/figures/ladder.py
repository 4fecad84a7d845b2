"""Accuracies over the lines of what simple readers reach."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..blocks import Figure
from .axes import on_axes
from .canvas import FAINT, TINY
from .dots import DotRow, paint_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def ladder_figure(label: str, caption: str, rows: Sequence[DotRow], rungs: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Rows of percentages from top to bottom, and a vertical line for each rung, named above; None without rows or rungs."""
    if not rows or not rungs:
        return None
    lines = {100 * rung["accuracy"]: str(rung["name"]).replace(" ", "\n") for rung in rungs}

    def paint(axes: "Axes") -> None:
        for place in lines:
            axes.axvline(place, color=FAINT, lw=0.8, dashes=(3, 2))
        paint_rows(axes, rows)
        axes.set_xlabel("accuracy, %")
        ends = [*lines, *(row.value for row in rows)]
        axes.set_xlim(max(min(ends) - 6, 0), max(ends) + 2)
        above = axes.secondary_xaxis("top")
        above.set_xticks(list(lines), list(lines.values()), fontsize=TINY)
        above.tick_params(length=0)
        above.spines["top"].set_visible(False)

    return Figure(label, caption, 1.1 + 0.26 * len(rows), on_axes(paint))
