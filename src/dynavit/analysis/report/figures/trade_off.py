"""Accuracy against cost: a line over thresholds, the single exits, and the thresholds that were chosen."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .canvas import INK, colour, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]  # (cost, accuracy as a fraction)


def trade_off_figure(name: str, label: str, curve: Points, exits: Points, chosen: tuple[float, float]) -> str:
    """`label` says what the cost is. Exits are numbered squares, the chosen point is a disc, which may lie in one of them."""

    def paint(axes: "Axes") -> None:
        def plot(points: Points, *style: str, **more: object) -> None:
            costs, accuracies = [cost for cost, _ in points], [100 * accuracy for _, accuracy in points]
            axes.plot(costs, accuracies, *style, **more)  # type: ignore[arg-type]

        plot(sorted(curve), ".-", color=colour("series-1"), lw=1.4, ms=3.5)
        plot(exits, "s", mfc="none", mec=INK, mew=1.0, ms=9)
        plot([chosen], "o", color=colour("series-2"), mew=0, ms=6)
        for number, (cost, accuracy) in enumerate(exits, 1):
            axes.annotate(str(number), (cost, 100 * accuracy), (0, 8), textcoords="offset points", ha="center")
        axes.margins(0.08, 0.15)
        axes.locator_params(axis="x", nbins=6)
        axes.ticklabel_format(useOffset=False)
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy, %")
        axes.grid(axis="y")

    return draw(name, 2.7, paint)
