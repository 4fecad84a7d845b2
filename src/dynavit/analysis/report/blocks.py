'''The blocks that pages are made of. Knows nothing about runs, tasks or files.

A section of a page is a title and some blocks. A task, also one in a user's own file, adds sections by a function from a run to
sections, made of the same blocks as ours:

>>> from dynavit.analysis.report import Facts, Figure, Figures, Run, Section, Table, Text
>>>
>>> def sections(run: Run) -> list[Section]:
...     """Angle errors by quadrant, which the evaluator stored under "by_quadrant"."""
...     errors = run.final.get("by_quadrant") or [12.0, 9.5, 11.0, 30.0]
...
...     def paint(figure):  # an empty matplotlib figure in the style of the page
...         axes = figure.add_subplot()
...         axes.bar(range(1, 5), errors)
...         axes.set(xlabel="quadrant", ylabel="angle error, degrees")
...
...     rows = [[f"quadrant {number}", f"{error:.1f}"] for number, error in enumerate(errors, 1)]
...     return [
...         Section(
...             "Angles",
...             [
...                 Text("Errors of the predicted angle."),
...                 Table("Angle error of each quadrant", ["", "error, degrees"], rows),
...                 Figures([Figure("Angle error of each quadrant", "Lower is better.", 2.4, paint)]),
...             ],
...         )
...     ]

Series colours of the style follow the reader's light or dark scheme, and so do `INK` and `FAINT` of `report.figures.canvas`;
other colours stay as they are. Ready-made figures (curves, dots, cells) are in `report.figures`.
'''

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure


@dataclass(frozen=True)
class Text:
    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Facts:
    """Names and values; folded away behind `summary` if that is given."""

    kind: ClassVar[str] = "facts"
    rows: Sequence[tuple[str, str]]
    summary: str = ""


@dataclass(frozen=True)
class Table:
    """Each row begins with its own header. `marked` cells (row, column) are set in bold. `summary` as in Facts."""

    kind: ClassVar[str] = "table"
    label: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[tuple[int, int]] = frozenset()
    notes: Sequence[str] = ()
    summary: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure that is not drawn yet; `figures.canvas` draws it onto a page or into files.

    Attributes:
        label: what is shown, for readers who cannot see it.
        caption: how to read it.
        height: in inches. The width is that of all figures.
        paint: fills an empty matplotlib figure.
    """

    label: str
    caption: str
    height: float
    paint: Callable[["MatplotlibFigure"], None]


@dataclass(frozen=True)
class StoredFigure:
    """A figure that was drawn before: its SVG element, see `figures.canvas.for_page`."""

    label: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Figures:
    """Side by side where there is room. `legend`: (name, colour variable, dashes) of lines that all of them share."""

    kind: ClassVar[str] = "figures"
    figures: Sequence[Figure | StoredFigure]
    legend: Sequence[tuple[str, str, Sequence[float]]] = ()


@dataclass(frozen=True)
class Sample:
    """A picture, given as a data address, with its target and what was predicted."""

    image: str
    target: str
    prediction: str
    confidence: str = ""

    @cached_property
    def right(self) -> bool:
        return self.target == self.prediction


@dataclass(frozen=True)
class Samples:
    kind: ClassVar[str] = "samples"
    samples: Sequence[Sample]
    caption: str


@dataclass(frozen=True)
class Picture:
    """A picture, given as a data address. `label`: what is shown, for readers who cannot see it."""

    image: str
    label: str
    caption: str = ""


@dataclass(frozen=True)
class Pictures:
    """Pictures in the colours they have; `small` ones many in a row, others as wide as the page allows."""

    kind: ClassVar[str] = "pictures"
    pictures: Sequence[Picture]
    caption: str
    small: bool = False


@dataclass(frozen=True)
class Notes:
    kind: ClassVar[str] = "notes"
    notes: Sequence[str]


Block = Text | Facts | Table | Figures | Samples | Pictures | Notes


@dataclass(frozen=True)
class Section:
    """A title and blocks; without blocks it is left out of the page."""

    title: str
    blocks: list[Block] = field(default_factory=list)
