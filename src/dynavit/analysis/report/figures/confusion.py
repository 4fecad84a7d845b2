"""Confusion of classes: how often each class was predicted for each."""

from collections.abc import Sequence

from ..blocks import Figure
from .cells import Cell, cells_figure

MOST_CLASSES = 20  # beyond that neither names nor numbers fit, and `confused_pairs` says more
LONGEST_NAME = 18  # letters of a class; longer ones leave no room for the cells


def confusion_figure(label: str, caption: str, counts: Sequence[Sequence[int]], classes: Sequence[str]) -> Figure | None:
    """Rows are the true classes, each shaded by its own share; None for more classes than can be shown."""
    if not 0 < len(counts) <= MOST_CLASSES:
        return None
    names = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in classes]
    longest = max(map(len, names))
    cells = [
        Cell(row, column, row == column, (count / sum(line)) ** 0.5, str(count))
        for row, line in enumerate(counts)
        for column, count in enumerate(line)
        if count
    ]
    height = 0.9 + 0.27 * len(counts) + 0.08 * longest
    return cells_figure(label, caption, height, names, names, cells, xlabel="predicted", ylabel="true", turned=longest > 2)


def confused_pairs(counts: Sequence[Sequence[int]], most: int) -> list[tuple[int, int, int]]:
    """(true, predicted, how often) of the most frequent mistakes."""
    pairs = [(row, column, n) for row, line in enumerate(counts) for column, n in enumerate(line) if n and row != column]
    return sorted(pairs, key=lambda pair: -pair[2])[:most]
