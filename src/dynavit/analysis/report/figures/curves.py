"""Lines over training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...statistics import mean
from ..read import Run
from .canvas import FAINT, colour, draw, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")

MOST_POINTS = 120  # per line: more cannot be seen at this width, and the page grows


@dataclass(frozen=True)
class Curve:
    """Mean, smallest and largest value over the seeds at each epoch."""

    epochs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def over_seeds(runs: Sequence[dict[float, float]]) -> Curve:
    """At the epochs that all runs have: a mean over changing sets of seeds would jump where one ends."""
    runs = [run for run in runs if run]
    common = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    epochs = _thinned(common)
    values = [[run[epoch] for run in runs] for epoch in epochs]
    return Curve(epochs, [mean(v) for v in values], [min(v) for v in values], [max(v) for v in values])


def curves_figure(name: str, label: str, curves: Sequence[tuple[int, Curve]], percent: bool = False) -> str | None:
    """One line with its band for each (series number, curve); None if there is nothing to draw."""
    curves = [(number, curve) for number, curve in curves if curve.epochs]
    if not curves:
        return None
    scale = 100 if percent else 1

    def paint(axes: "Axes") -> None:
        for number, curve in curves:
            variable, dashes = series_style(number)
            line = [scale * value for value in curve.mean]
            low, high = ([scale * value for value in side] for side in (curve.low, curve.high))
            marker = "o" if len(line) == 1 else ""
            axes.plot(curve.epochs, line, color=colour(variable), dashes=dashes or (None, None), lw=1.4, marker=marker, ms=3)
            if low != high:
                axes.fill_between(curve.epochs, low, high, color=colour(variable), alpha=0.13, lw=0)
        bottom, top = settled_range([side for _, curve in curves for side in (curve.low, curve.high)])
        axes.set_ylim(scale * bottom, scale * top)
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True)
        axes.set_ylabel(label)
        axes.grid(axis="y")

    return draw(name, 2.9, paint)


def lambda_paths_figure(run: Run, name: str, label: str) -> str | None:
    """λ over training: a line for each layer, averaged over its heads, from the first (orange) to the last (blue)."""
    records = run.per_head(name)
    if len(records) < 2:
        return None
    records = [records[i] for i in _thinned(range(len(records)))]
    layers = list(records[-1][1])

    def paint(axes: "Axes") -> None:
        from matplotlib.colors import to_rgb

        # The colours in between are not in the palette; both ends are mid-tones, so all of them read on light and dark.
        first, last = to_rgb("#d9772b"), to_rgb("#2f86c9")
        for depth, layer in enumerate(layers):
            t = depth / max(1, len(layers) - 1)
            shade = tuple((1 - t) * a + t * b for a, b in zip(first, last, strict=True))
            points = [(epoch, mean(values[layer])) for epoch, values in records if layer in values]
            axes.plot(*zip(*points, strict=True), color=shade, lw=1.1)
        axes.axhline(0.5, color=FAINT, lw=0.6, dashes=(2, 2))
        axes.set_ylim(0, 1)
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True)
        axes.set_ylabel(label)
        axes.grid(axis="y")

    return draw(f"{run.name} {name} over training", 2.5, paint)


def settled_range(lines: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Limits that leave out the steep first quarter, so that differences at the end can be seen."""
    settled = [value for line in lines for value in line[len(line) // 4 :]]
    low, high = min(settled), max(settled)
    margin = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    return low - margin, high + margin


def _thinned(points: Sequence[T]) -> list[T]:
    """At most MOST_POINTS of them, evenly, with the first and the last."""
    if len(points) <= MOST_POINTS:
        return list(points)
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(i * step)] for i in range(MOST_POINTS)]
