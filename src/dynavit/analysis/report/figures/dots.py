"""One row for each setting: a dot, an interval, and small dots for the single values behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...statistics import mean, standard_error
from ..blocks import Figure
from .axes import on_axes
from .canvas import FAINT, colour, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class DotRow:
    name: str
    series: int
    value: float
    interval: tuple[float, float] | None = None
    parts: Sequence[float] = ()


def mean_row(name: str, series: int, values: Sequence[float]) -> DotRow:
    """The mean of some seeds, ± one standard error if there are several."""
    centre, error = mean(values), standard_error(values)
    return DotRow(name, series, centre, None if error is None else (centre - error, centre + error), values)


def mean_rows_caption(rows: Sequence[DotRow]) -> str:
    """The first sentence of a caption for rows made by `mean_row`."""
    if any(row.interval for row in rows):
        return "Large dots are means, lines ± one standard error, small dots the single seeds."
    return "Each dot is a single seed."


def dots_figure(label: str, caption: str, xlabel: str, rows: Sequence[DotRow], line_at: float | None = None) -> Figure | None:
    """Rows from top to bottom, with a vertical line if `line_at` is given; None if there is nothing to draw."""
    if not rows:
        return None

    def paint(axes: "Axes") -> None:
        if line_at is not None:
            axes.axvline(line_at, color=FAINT, lw=0.8)
        paint_rows(axes, rows)
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel(xlabel)
        axes.grid(axis="x")

    return Figure(label, caption, 0.8 + 0.26 * len(rows), on_axes(paint))


def paint_rows(axes: "Axes", rows: Sequence[DotRow]) -> None:
    """The dots and their names, from top to bottom."""
    for place, row in enumerate(rows):
        shade = colour(series_style(row.series)[0])
        if row.interval:
            axes.plot(row.interval, (place, place), color=shade, lw=1.4, solid_capstyle="butt")
        # Small dots a little below, or they would hide under the large one.
        axes.plot(row.parts, [place + 0.24] * len(row.parts), "o", color=shade, ms=2.6, alpha=0.7, mew=0)
        axes.plot([row.value], [place], "o", color=shade, ms=5.5, mew=0)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
