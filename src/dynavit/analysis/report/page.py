"""A page from sections: draws their figures and fills the template. Knows nothing about runs."""

from collections.abc import Sequence
from itertools import count

from .blocks import Figure, Section, StoredFigure
from .figures.canvas import PALETTE, svg_element


def render(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """A self-contained page; sections without content are left out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    number = count(1)

    def svg(figure: Figure | StoredFigure) -> Markup:
        """Not escaped again: matplotlib has escaped the words in it."""
        return Markup(figure.svg if isinstance(figure, StoredFigure) else svg_element(f"figure {next(number)}", figure))

    environment = Environment(
        loader=PackageLoader("dynavit.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = svg
    shown = [section for section in sections if section.blocks]
    return environment.get_template("report.html").render(title=title, subtitle=subtitle, sections=shown, palette=PALETTE)
