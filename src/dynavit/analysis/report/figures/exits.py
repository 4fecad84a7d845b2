"""Exits of a cascade: how many images leave at each, and whether its confidence can be trusted. Exits are counted from 1."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..blocks import Figure
from .axes import on_axes, title
from .canvas import FAINT, HIGH, SMALL, TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

Bins = Sequence[Mapping[str, float]]  # "samples", "confidence", "accuracy" of each, see `measures.reliability`


def shares_figure(label: str, caption: str, name: str, shares: Sequence[float]) -> Figure:
    """A bar for each exit; `shares` are fractions."""
    percents = [100 * share for share in shares]

    def paint(axes: "Axes") -> None:
        places = range(1, len(percents) + 1)
        axes.bar(places, percents, color=HIGH, width=0.65)
        for place, share in zip(places, percents, strict=True):
            axes.annotate(f"{share:.1f} %", (place, share), (0, 3), textcoords="offset points", ha="center")
        axes.set_xticks(places, [f"exit {place}" for place in places])
        axes.set_xlim(0.4, len(percents) + 0.6)
        axes.set_ylim(0, 1.15 * max(percents) or 1)
        axes.set_ylabel("images leaving here, %")
        axes.grid(axis="y")
        axes.tick_params(axis="x", length=0)
        title(axes, name)

    return Figure(label, caption, 2.4, on_axes(paint))


def reliability_figure(label: str, caption: str, exits: Sequence[Bins]) -> Figure:
    """A panel for each exit: accuracy over confidence, larger dots for more images."""
    columns = min(3, len(exits))
    rows = -(-len(exits) // columns)

    def paint(figure: "MatplotlibFigure") -> None:
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for number, axes in enumerate(panels.flat):
            if number < len(exits):
                _reliability(axes, exits[number])
                axes.set_title(f"exit {number + 1}")
                axes.tick_params(labelsize=SMALL, labelbottom=number + columns >= len(exits))
            else:
                axes.set_visible(False)
        figure.supxlabel("confidence, %", fontsize=TEXT)
        figure.supylabel("accuracy, %", fontsize=TEXT)

    return Figure(label, caption, 0.5 + rows * (min(2.4, 3.6 / columns - 0.1) + 0.22), paint)


def _reliability(axes: "Axes", bins: Bins) -> None:
    filled = [each for each in bins if each["samples"]]
    total = sum(each["samples"] for each in filled) or 1
    sure, right = ([100 * each[name] for each in filled] for name in ("confidence", "accuracy"))
    axes.plot((0, 100), (0, 100), color=FAINT, lw=0.8, dashes=(4, 2))
    axes.plot(sure, right, color=HIGH, lw=1)
    axes.scatter(sure, right, s=[8 + 90 * each["samples"] / total for each in filled], color=HIGH, alpha=0.7, lw=0)
    axes.set(xlim=(0, 103), ylim=(0, 103), aspect="equal", xticks=(0, 50, 100), yticks=(0, 50, 100))
