"""One row for each setting: a dot, an interval, and small dots for what it was made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .canvas import FAINT, colour, draw, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class DotRow:
    name: str
    series: int
    value: float
    interval: tuple[float, float] | None = None
    parts: Sequence[float] = ()


def dots_figure(name: str, label: str, rows: Sequence[DotRow], zero: float | None = None) -> str | None:
    """Rows from top to bottom, with a line at `zero` if given; None if there is nothing to draw."""
    if not rows:
        return None

    def paint(axes: "Axes") -> None:
        if zero is not None:
            axes.axvline(zero, color=FAINT, lw=0.8)
        for place, row in enumerate(rows):
            shade = colour(series_style(row.series)[0])
            if row.interval:
                axes.plot(row.interval, (place, place), color=shade, lw=1.4, solid_capstyle="butt")
            # Small dots a little below, or they would hide under the large one.
            axes.plot(row.parts, [place + 0.24] * len(row.parts), "o", color=shade, ms=2.6, alpha=0.7, mew=0)
            axes.plot([row.value], [place], "o", color=shade, ms=5.5, mew=0)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel(label)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)

    return draw(name, 0.8 + 0.26 * len(rows), paint)
