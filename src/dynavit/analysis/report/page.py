"""The parts a page is made of, and the page itself. Knows nothing about runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from .figures.canvas import PALETTE


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
    """`label` says what is shown to those who cannot see it, `caption` how to read it."""

    svg: str
    label: str
    caption: str


@dataclass(frozen=True)
class Figures:
    """Side by side where there is room. `legend`: (name, colour variable, dashes) of lines that all of them share."""

    kind: ClassVar[str] = "figures"
    figures: Sequence[Figure]
    legend: Sequence[tuple[str, str, Sequence[float]]] = ()


@dataclass(frozen=True)
class Sample:
    image: str
    target: str
    prediction: str
    confidence: str

    @cached_property
    def right(self) -> bool:
        return self.target == self.prediction


@dataclass(frozen=True)
class Samples:
    kind: ClassVar[str] = "samples"
    samples: Sequence[Sample]
    caption: str


@dataclass(frozen=True)
class Notes:
    kind: ClassVar[str] = "notes"
    notes: Sequence[str]


Block = Text | Facts | Table | Figures | Samples | Notes


@dataclass(frozen=True)
class Section:
    title: str
    blocks: list[Block] = field(default_factory=list)


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """A self-contained page; sections without content are left out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("dynavit.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup  # ours: matplotlib has escaped the words in it
    shown = [section for section in sections if section.blocks]
    return environment.get_template("report.html").render(title=title, subtitle=subtitle, sections=shown, palette=PALETTE)
