"""Numbers on a grid: λ per layer and head, and which class was taken for which.

Cells are a palette colour, the more opaque the further the value is from the neutral one. So the page's background is the
neutral colour, and ink stays legible on every cell, light or dark.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..read import Run
from .canvas import HIGH, LOW, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_OPAQUE = 0.6
MOST_CLASSES = 20  # beyond that neither names nor numbers fit, and `confused_pairs` says more
LONGEST_NAME = 18  # letters of a class; longer ones leave no room for the cells
MOST_NUMBERS = 12  # columns that still have room for a number in each cell


def lambda_figure(run: Run, name: str) -> str | None:
    """λ at the end of training: rows are layers in the order of the model, columns heads; None if the run logged none."""
    records = run.per_head(name)
    if not records:
        return None
    layers = records[-1][1]
    heads = max(len(values) for values in layers.values())

    def paint(axes: "Axes") -> None:
        for row, values in enumerate(layers.values()):
            for head, value in enumerate(values):
                cell(axes, row, head, HIGH if value > 0.5 else LOW, 2 * abs(value - 0.5))
                if heads <= MOST_NUMBERS:
                    number(axes, row, head, heads, f"{value:.2f}")
        grid(axes, list(layers), [str(head) for head in range(heads)])
        axes.set_xlabel("head")
        scale(axes)

    return draw(f"{run.name} {name} at the end", 0.9 + 0.2 * len(layers), paint)


def confusion_figure(name: str, counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str | None:
    """Rows are the true classes, each shaded by its own share; None for more classes than can be shown."""
    if not 0 < len(counts) <= MOST_CLASSES:
        return None
    classes = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in classes]
    longest = max(map(len, classes))

    def paint(axes: "Axes") -> None:
        for row, line in enumerate(counts):
            for column, count in enumerate(line):
                if count:
                    cell(axes, row, column, HIGH if row == column else LOW, (count / sum(line)) ** 0.5)
                    number(axes, row, column, len(line), str(count))
        grid(axes, classes, classes)
        axes.set_ylabel("true")
        axes.set_xlabel("predicted")
        if longest > 2:
            axes.tick_params(axis="x", labelrotation=90)

    return draw(name, 0.9 + 0.27 * len(counts) + 0.08 * longest, paint)


def confused_pairs(counts: Sequence[Sequence[int]], most: int) -> list[tuple[int, int, int]]:
    """(true, predicted, how often) of the most frequent mistakes."""
    pairs = [(row, column, n) for row, line in enumerate(counts) for column, n in enumerate(line) if n and row != column]
    return sorted(pairs, key=lambda pair: -pair[2])[:most]


def cell(axes: "Axes", row: int, column: int, shade: str, strength: float) -> None:
    from matplotlib.patches import Rectangle

    corner = (column - 0.48, row - 0.46)
    patch = Rectangle(corner, 0.96, 0.92, facecolor=shade, alpha=MOST_OPAQUE * strength, lw=0, clip_on=False)
    axes.add_artist(patch).set_in_layout(False)  # it is inside the axes; measuring hundreds takes seconds


def number(axes: "Axes", row: int, column: int, columns: int, text: str) -> None:
    axes.text(column, row, text, ha="center", va="center", fontsize=min(7.5, 78 / columns)).set_in_layout(False)


def grid(axes: "Axes", rows: Sequence[str], columns: Sequence[str]) -> None:
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def scale(axes: "Axes") -> None:
    """From 0 to 1 at the right, the same for every figure of λ."""
    steps = 20
    bar = axes.inset_axes((1.04, 0.0, 0.035, 1.0))
    for step in range(steps):
        middle = (step + 0.5) / steps
        bar.axhspan(
            step / steps,
            (step + 1) / steps,
            facecolor=HIGH if middle > 0.5 else LOW,
            alpha=MOST_OPAQUE * 2 * abs(middle - 0.5),
            lw=0,
        )
    bar.set_ylim(0, 1)
    bar.set_xticks([])
    bar.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    bar.yaxis.tick_right()
    bar.tick_params(length=0)
    for side in bar.spines.values():
        side.set_visible(False)
