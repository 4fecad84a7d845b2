"""Axes, titles and legends that several figures have in common."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .canvas import TEXT, TINY, WIDTH, colour, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

T = TypeVar("T")

MOST_LABELS = 26  # layers named beside each other
LETTER = 0.062  # inches, of the smallest text


def on_axes(paint: Callable[["Axes"], None]) -> Callable[["MatplotlibFigure"], None]:
    """For figures of a single panel."""
    return lambda figure: paint(figure.add_subplot())


def line_style(number: int) -> dict[str, Any]:
    """Colour and dashes of series `number`, for `plot`."""
    variable, dashes = series_style(number)
    return {"color": colour(variable), "dashes": dashes or (None, None)}


def thinned(points: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly, with the first and the last.

    >>> thinned(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(i * step)] for i in range(most)]


def title(axes: "Axes", text: str) -> None:
    """The name of the run that a figure is about."""
    axes.set_title(text, fontsize=TEXT, fontweight="bold", loc="left")


def epoch_axis(axes: "Axes") -> None:
    axes.set_xlabel("epoch")
    axes.locator_params(axis="x", integer=True)


def layer_axis(axes: "Axes", paths: Sequence[str]) -> None:
    """The layers from left to right, by name as far as there is room."""
    step = -(-len(paths) // MOST_LABELS)
    axes.set_xticks(range(0, len(paths), step), [short(path) for path in paths[::step]], rotation=90, fontsize=TINY)
    axes.set_xlim(-0.6, len(paths) - 0.4)
    axes.tick_params(axis="x", length=2)


def names_height(paths: Sequence[str]) -> float:
    """Inches that the names of a `layer_axis` take."""
    return LETTER * max(len(short(path)) for path in paths)


def short(path: str, most: int = 24) -> str:
    """
    >>> short("blocks.0.norm1"), short("model.backbone.stages.2.blocks.11.norm1")
    ('blocks.0.norm1', '…tages.2.blocks.11.norm1')
    """
    return path if len(path) <= most else "…" + path[1 - most :]


def legend(figure: "MatplotlibFigure", names: Sequence[str]) -> None:
    """Above the panels, if there is more than one name."""
    if len(names) > 1:
        figure.legend(loc="outside upper left", ncols=_columns(names), handlelength=2.4)


def legend_height(names: Sequence[str]) -> float:
    return 0.17 * -(-len(names) // _columns(names)) + 0.1 if len(names) > 1 else 0.0


def _columns(names: Sequence[str]) -> int:
    return max(1, int(WIDTH / (0.55 + 0.075 * max(map(len, names)))))
