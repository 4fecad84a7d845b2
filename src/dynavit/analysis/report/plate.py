"""What a kind of numbers is shown as, before anything is drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .page import Samples, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plate:
    """A figure to be drawn: `paint` fills an empty one, `height` inches high. Figures of one `group` stand side by side."""

    label: str
    caption: str
    height: float
    paint: Callable[["Figure"], None]
    group: str = ""


@dataclass(frozen=True)
class Chapter:
    """`text` says what is shown and how to read it."""

    title: str
    text: str
    plates: Sequence[Plate] = ()
    tables: Sequence[Table] = ()
    samples: Sequence[Samples] = ()
