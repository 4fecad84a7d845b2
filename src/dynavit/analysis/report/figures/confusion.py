"""Confusion of classes: how often each class was predicted for each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..blocks import Figure
from .cells import Cell, cells_figure

MOST_CLASSES = 20  # beyond that neither names nor numbers fit, and `confused_pairs` says more
LONGEST_NAME = 18  # letters of a class; longer ones leave no room for the cells


Cells = Sequence[tuple[int, int, int]]  # (true class, predicted class, images), where there are any


def stored_cells(stored: Any) -> Cells:
    """From an evaluation: lists {"true", "predicted", "images"}; older ones have the whole matrix, true classes as rows.

    >>> stored_cells({"true": [0, 1], "predicted": [0, 0], "images": [9, 2]}) == stored_cells([[9, 0], [2, 0]])
    True
    """
    if not stored:
        return []
    if isinstance(stored, Mapping):
        return list(zip(stored["true"], stored["predicted"], stored["images"], strict=True))
    return [(row, column, n) for row, line in enumerate(stored) for column, n in enumerate(line) if n]


def confusion_figure(label: str, caption: str, counts: Cells, classes: Sequence[str]) -> Figure | None:
    """Rows are the true classes, each shaded by its own share; None for more classes than can be shown."""
    if not counts or len(classes) > MOST_CLASSES:
        return None
    names = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in classes]
    longest, of_row = max(map(len, names)), row_sums(counts)
    cells = [Cell(row, column, row == column, (count / of_row[row]) ** 0.5, str(count)) for row, column, count in counts]
    height = 0.9 + 0.27 * len(classes) + 0.08 * longest
    return cells_figure(label, caption, height, names, names, cells, xlabel="predicted", ylabel="true", turned=longest > 2)


def confused_pairs(counts: Cells, most: int) -> Cells:
    """The most frequent mistakes."""
    return sorted((cell for cell in counts if cell[0] != cell[1]), key=lambda cell: -cell[2])[:most]


def row_sums(counts: Cells) -> Counter[int]:
    """Images of each true class."""
    sums: Counter[int] = Counter()
    for row, _, count in counts:
        sums[row] += count
    return sums
