"""λ of Dynamic Token Normalization: of each layer and head at the end of training, and on the way there (Fig. 4).

The report shows both; `dynavit analyze` writes the second as files.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..blocks import Figure
from .axes import LETTER, line_style, short, thinned
from .canvas import FAINT, TINY, WIDTH
from .cells import Cell, cells_figure
from .numbers import Numbers, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

ABOUT = "λ weighs a token's own statistics, as in LayerNorm (λ = 1), against those of the tokens around it (λ = 0)."

MOST_NUMBERS = 12  # columns that still have room for a number in each cell
MOST_POINTS = 30  # per line: panels are small
MOST_ON_LINES = 5000  # points of a figure, or the page grows
MOST_NAMED = 12  # heads in the legend
LEFT, GAP, TITLE, PANEL, FOOT = 0.34, 0.12, 0.2, 0.72, 0.42  # inches


def lambda_at_end(name: str, moment: str, epoch: float, layers: Mapping[str, Sequence[float]]) -> Figure:
    """Rows are layers in the order of the model, columns heads."""
    heads = max(len(values) for values in layers.values())
    cells = [
        Cell(row, head, value > 0.5, 2 * abs(value - 0.5), f"{value:.2f}" if heads <= MOST_NUMBERS else "")
        for row, values in enumerate(layers.values())
        for head, value in enumerate(values)
    ]
    return cells_figure(
        f"λ of the {moment} per layer and head, {name}",
        f"λ of the {moment} in {name} at epoch {epoch:g}: a row for each layer, from the first to the last, a column for each "
        "head. Blue is above 0.5, orange below.",
        0.9 + 0.2 * len(layers),
        list(layers),
        [str(head) for head in range(heads)],
        cells,
        xlabel="head",
        scale=True,
    )


def lambda_over_training(
    name: str, moment: str, epochs: Sequence[float], layers: Mapping[str, Sequence[Sequence[float | None]]]
) -> Figure:
    """`layers`: (epochs, heads) values each."""
    values = {path: numbers(each) for path, each in layers.items()}
    columns = max(1, min(4, int((WIDTH - LEFT) / (LETTER * max(len(short(path)) for path in values) + GAP))))
    rows = -(-len(values) // columns)
    heads = max(each.shape[1] for each in values.values())
    named = heads if heads <= MOST_NAMED else 0
    legend_rows = -(-named // 6)
    height = rows * (TITLE + PANEL) + FOOT + 0.17 * legend_rows
    width = (WIDTH - LEFT - (columns - 1) * GAP - 0.06) / columns
    points = max(8, min(MOST_POINTS, MOST_ON_LINES // sum(each.shape[1] for each in values.values())))
    some = thinned(range(len(epochs)), points)

    def paint(figure: "MatplotlibFigure") -> None:
        figure.set_layout_engine("none")
        for number, (path, each) in enumerate(values.items()):
            row, column = divmod(number, columns)
            left, top = LEFT + column * (width + GAP), row * (TITLE + PANEL) + TITLE
            axes = figure.add_axes((left / WIDTH, 1 - (top + PANEL) / height, width / WIDTH, PANEL / height))
            _panel(axes, numbers(epochs)[some], each[some])
            axes.set_title(short(path), fontsize=TINY, loc="left", pad=2)
            axes.tick_params(labelleft=not column, labelbottom=number + columns >= len(values))
            if number + columns >= len(values):
                axes.set_xlabel("epoch", labelpad=1)
        if named:
            _legend(figure, named, -(-named // legend_rows))

    return Figure(
        f"λ of the {moment} over training, {name}",
        f"λ of the {moment} in {name} over training: a panel for each layer, a line for each head.",
        height,
        paint,
    )


def _panel(axes: "Axes", epochs: Numbers, values: Numbers) -> None:
    marker = "o" if len(epochs) == 1 else ""
    for head, line in enumerate(values.T):
        axes.plot(epochs, line, lw=1, marker=marker, ms=2.5, label=f"head {head}", **line_style(head))
    axes.axhline(0.5, color=FAINT, lw=0.6, dashes=(2, 2))
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.locator_params(axis="x", integer=True, nbins=3)
    axes.tick_params(labelsize=TINY, length=2)


def _legend(figure: "MatplotlibFigure", heads: int, columns: int) -> None:
    handles, names = max((axes.get_legend_handles_labels() for axes in figure.axes), key=lambda found: len(found[1]))
    narrow = {"fontsize": TINY, "handlelength": 1.6, "columnspacing": 0.9, "borderpad": 0, "borderaxespad": 0.1}
    figure.legend(handles[:heads], names[:heads], loc="lower left", ncols=columns, **narrow)
