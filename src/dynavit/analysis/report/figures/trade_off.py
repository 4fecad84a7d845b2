"""Accuracy against cost: a line over thresholds, the single exits, and the thresholds that were chosen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..blocks import Figure
from .axes import on_axes
from .canvas import HIGH, INK, LOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]  # (cost, accuracy as a fraction)


def trade_off_figure(
    label: str, caption: str, xlabel: str, curve: Points, exits: Points, chosen: tuple[float, float]
) -> Figure:
    """Exits are squares, numbered from 1; the chosen point is a disc, which may lie in one of them."""

    def paint(axes: "Axes") -> None:
        def plot(points: Points, *style: str, **more: object) -> None:
            costs, accuracies = [cost for cost, _ in points], [100 * accuracy for _, accuracy in points]
            axes.plot(costs, accuracies, *style, **more)  # type: ignore[arg-type]

        plot(sorted(curve), ".-", color=HIGH, lw=1.4, ms=3.5)
        plot(exits, "s", mfc="none", mec=INK, mew=1.0, ms=9)
        plot([chosen], "o", color=LOW, mew=0, ms=6)
        for number, (cost, accuracy) in enumerate(exits, 1):
            axes.annotate(str(number), (cost, 100 * accuracy), (0, 8), textcoords="offset points", ha="center")
        axes.margins(0.08, 0.15)
        axes.locator_params(axis="x", nbins=6)
        axes.ticklabel_format(useOffset=False)
        axes.set_xlabel(xlabel)
        axes.set_ylabel("accuracy, %")
        axes.grid(axis="y")

    return Figure(label, caption, 2.7, on_axes(paint))
