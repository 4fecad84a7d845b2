"""Counts of a few named groups, a bar for each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..blocks import Figure
from .axes import on_axes
from .canvas import HIGH

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bars_figure(label: str, caption: str, xlabel: str, ylabel: str, names: Sequence[str], values: Sequence[float]) -> Figure:
    def paint(axes: "Axes") -> None:
        axes.bar(range(len(values)), values, color=HIGH, width=0.8)
        axes.set_xticks(range(len(values)), names)
        axes.set_ylim(0, 1.08 * max(values, default=0) or 1)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(axis="y")
        axes.tick_params(axis="x", length=0)

    return Figure(label, caption, 2.1, on_axes(paint))
