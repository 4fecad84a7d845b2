"""Small changes under several conditions on a logarithmic axis, a line for each way to prevent them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..blocks import Figure
from .axes import legend, legend_height, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

LEAST = 1e-8  # where no change at all is drawn


def drift_figure(
    label: str, caption: str, xlabel: str, conditions: Sequence[str], lines: Mapping[str, Sequence[float]]
) -> Figure:
    names = list(lines)

    def paint(figure: "MatplotlibFigure") -> None:
        axes = figure.add_subplot()
        for number, (name, values) in enumerate(lines.items()):
            shown = [max(value, LEAST) for value in values]
            axes.plot(range(len(shown)), shown, "o-", ms=3.5, mew=0, lw=1.2, label=name, **line_style(number))
        axes.set_yscale("log")
        axes.set_ylim(LEAST / 2, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # matplotlib's own are formulas, which we do not set
        axes.set_xticks(range(len(conditions)), conditions, rotation=45, ha="right")
        axes.set(xlabel=xlabel, ylabel="change of a score")
        axes.grid(axis="y")
        legend(figure, names)

    return Figure(label, caption, 3.0 + legend_height(names), paint)
