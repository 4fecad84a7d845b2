"""One value for each layer, a line for each run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..blocks import Figure
from .axes import layer_axis, legend, legend_height, line_style, names_height
from .numbers import Numbers, finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure


@dataclass(frozen=True)
class LayerLine:
    """Values of one run, NaN for layers it has none of; with a band (low, high) around them if given."""

    name: str
    values: Numbers
    band: tuple[Numbers, Numbers] | None = None


def layers_figure(label: str, caption: str, ylabel: str, paths: Sequence[str], lines: Sequence[LayerLine]) -> Figure | None:
    """`paths` are the layers from left to right. None if no line has a value."""
    shown = [(number, line) for number, line in enumerate(lines) if len(finite([line.values]))]
    if not shown:
        return None
    names = [line.name for _, line in shown]

    def paint(figure: "MatplotlibFigure") -> None:
        axes = figure.add_subplot()
        for number, line in shown:
            style = line_style(number)
            axes.plot(range(len(paths)), line.values, "o-", ms=3.2, mew=0, lw=1.3, label=line.name, **style)
            if line.band:
                axes.fill_between(range(len(paths)), *line.band, color=style["color"], alpha=0.13, lw=0)
        axes.set_ylim(0, None)
        axes.set_ylabel(ylabel, labelpad=6)
        axes.grid(axis="y")
        layer_axis(axes, paths)
        legend(figure, names)

    return Figure(label, caption, 2.3 + names_height(paths) + legend_height(names), paint)
