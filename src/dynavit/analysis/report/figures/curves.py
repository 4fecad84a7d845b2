"""Lines over training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...statistics import mean
from ..blocks import Figure
from .axes import epoch_axis, line_style, on_axes, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 120  # per line: more cannot be seen at this width, and the page grows


@dataclass(frozen=True)
class SeedCurve:
    """Mean, smallest and largest value over the seeds at each epoch."""

    epochs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def over_seeds(runs: Sequence[dict[float, float]]) -> SeedCurve:
    """At the epochs that all runs have: a mean over changing sets of seeds would jump where one ends."""
    runs = [run for run in runs if run]
    common = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    epochs = thinned(common, MOST_POINTS)
    values = [[run[epoch] for run in runs] for epoch in epochs]
    return SeedCurve(epochs, [mean(v) for v in values], [min(v) for v in values], [max(v) for v in values])


def curves_figure(
    label: str, caption: str, ylabel: str, curves: Sequence[tuple[int, SeedCurve]], factor: float = 1
) -> Figure | None:
    """One line with its band for each (series number, curve), values times `factor`; None if there is nothing to draw."""
    curves = [(number, curve) for number, curve in curves if curve.epochs]
    if not curves:
        return None

    def paint(axes: "Axes") -> None:
        for number, curve in curves:
            style = line_style(number)
            line, low, high = ([factor * value for value in side] for side in (curve.mean, curve.low, curve.high))
            axes.plot(curve.epochs, line, lw=1.4, marker="o" if len(line) == 1 else "", ms=3, **style)
            if low != high:
                axes.fill_between(curve.epochs, low, high, color=style["color"], alpha=0.13, lw=0)
        bottom, top = settled_range([side for _, curve in curves for side in (curve.low, curve.high)])
        axes.set_ylim(factor * bottom, factor * top)
        epoch_axis(axes)
        axes.set_ylabel(ylabel)
        axes.grid(axis="y")

    return Figure(label, caption, 2.9, on_axes(paint))


def settled_range(lines: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Limits that leave out the steep first quarter, so that differences at the end can be seen."""
    settled = [value for line in lines for value in line[len(line) // 4 :]]
    low, high = min(settled), max(settled)
    margin = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    return low - margin, high + margin
