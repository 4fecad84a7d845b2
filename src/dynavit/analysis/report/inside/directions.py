"""Directions of tokens before and after a norm, on two principal components (Fig. 9)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.metric import NOTHING
from ..blocks import Figure, Figures, Section, Table, Text
from ..figures.axes import short, thinned
from ..figures.canvas import FAINT, HIGH, TEXT, TINY
from ..figures.numbers import Numbers, finite, numbers
from ..words import number_text
from .runs import paths_of, run_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

WHEN = ("before", "after")
MOST_DOTS = 250  # per panel: more hide each other, and the page grows


def directions(found: dict[str, Any]) -> Section:
    runs, paths = found["runs"], paths_of(found["runs"])
    pairs = [(run, layer) for path in paths for run in runs for layer in run["layers"] if layer["path"] == path]
    reach = 1.08 * float(np.max(np.abs(finite(_dots(layer, when) for _, layer in pairs for when in WHEN)), initial=1e-6))
    rows = [
        [layer["path"], run_name(run), *(number_text(layer[f"spread_{when}"], ".3f") for when in WHEN)] for run, layer in pairs
    ]
    text = Text(
        "Each dot is a token, scaled to length 1, on the two principal components of all tokens before and after a norm. All "
        "panels have the same range: dots that are closer together point in more similar directions."
    )
    figures = [Figures([_figure(run, layer, reach) for run, layer in pairs if layer["path"] == path]) for path in paths]
    note = "Spread: 0 if all tokens point the same way, 1 if their directions cancel."
    table = Table("Spread of token directions", ["norm", "run", "before", "after"], rows, notes=[note])
    return Section("Token directions", [text, *figures, table])


def _figure(run: dict[str, Any], layer: dict[str, Any], reach: float) -> Figure:
    name = run_name(run)

    def paint(figure: "MatplotlibFigure") -> None:
        figure.suptitle(f"{name}, {short(layer['path'])}", fontsize=TEXT, fontweight="bold", x=0.01, ha="left")
        for when, axes in zip(WHEN, figure.subplots(1, 2, sharex=True, sharey=True), strict=True):
            axes.axhline(0, color=FAINT, lw=0.5)
            axes.axvline(0, color=FAINT, lw=0.5)
            axes.plot(*_dots(layer, when).T, "o", color=HIGH, ms=2.6, mew=0, alpha=0.55)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
            first, second = _shares(layer[f"explained_{when}"])
            axes.set_xlabel(f"component 1 ({first})")
            axes.set_ylabel(f"component 2 ({second})")
            axes.locator_params(nbins=5)
            axes.tick_params(labelsize=TINY, labelleft=True)
            axes.set_title(f"{when}, spread {number_text(layer[f'spread_{when}'], '.2f')}")

    caption = (
        f"{name}, {layer['path']}: token directions before and after the norm ({run['norm']}). In brackets, the share of "
        "its panel's variance that a component explains."
    )
    return Figure(f"Token directions before and after {layer['path']}, {name}", caption, 2.5, paint)


def _dots(layer: dict[str, Any], when: str) -> Numbers:
    """(n, 2)"""
    dots = numbers(layer[when]).reshape(-1, 2)
    return dots[thinned(range(len(dots)), MOST_DOTS)]


def _shares(explained: Sequence[float | None]) -> list[str]:
    return [NOTHING if share is None else f"{100 * share:.0f} %" for share in explained]
