"""Drawing figures, onto a page that may be light or dark and into files: the only place that knows style and colours.

matplotlib writes SVG with fixed colours. We draw with the light ones and replace each by a CSS variable afterwards, so that one
figure follows the reader's colour scheme. Text stays text, in the page's own font. Figures that are files of their own keep the
light colours and bring white paper.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..blocks import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

# CSS variable: (on light, on dark). Series: distinct for colour-blind readers too, at least 3:1 on both backgrounds.
PALETTE = {
    "ink": ("#1f2328", "#e3e5e8"),
    "faint": ("#9aa0a6", "#6b7178"),
    "series-1": ("#0072b2", "#56b4e9"),
    "series-2": ("#d55e00", "#f0843f"),
    "series-3": ("#00875f", "#2fc79a"),
    "series-4": ("#a3478a", "#e39ac4"),
    "series-5": ("#947200", "#e2b93b"),
    "series-6": ("#4a55c8", "#a3a9ff"),
    "series-7": ("#7d4a33", "#cfa287"),
}
INK, FAINT = PALETTE["ink"][0], PALETTE["faint"][0]
SERIES = [name for name in PALETTE if name.startswith("series-")]
HIGH, LOW = PALETTE["series-1"][0], PALETTE["series-2"][0]  # the two ends of a scale
DASHES = [(), (5, 2), (1.5, 1.5)]

WIDTH = 4.2  # inches; about as wide as a telephone, so that text stays legible there
TEXT, SMALL, TINY = 8.5, 7.5, 7.0  # points
DOTS_PER_INCH = 200
PAPER = '<rect width="100%" height="100%" style="fill: #ffffff"/>'


def series_style(number: int) -> tuple[str, tuple[float, ...]]:
    """(colour variable, dashes) of series `number`; number -1 is the baseline, in ink."""
    return ("ink", ()) if number < 0 else (SERIES[number % len(SERIES)], DASHES[number % len(DASHES)])


def colour(variable: str) -> str:
    """The colour that matplotlib is told."""
    return PALETTE[variable][0]


def svg_element(name: str, figure: Figure) -> str:
    """An `<svg>` element for a page. `name` keeps the ids of several figures on a page apart."""
    with _painted(name, figure) as sheet:
        return for_page(_svg(sheet))


def svg_and_png(name: str, figure: Figure) -> tuple[str, bytes]:
    """The same figure as an SVG file and as a PNG file, both on white paper; `for_page` makes the SVG an element of a page."""
    with _painted(name, figure) as sheet:
        svg = re.sub("(<svg[^>]*>)", rf"\1\n {PAPER}", _svg(sheet), count=1)
        png = io.BytesIO()
        sheet.savefig(png, format="png", dpi=DOTS_PER_INCH, facecolor="#ffffff", metadata={"Software": None})
        return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}', png.getvalue()


@contextmanager
def _painted(name: str, figure: Figure) -> Iterator["MatplotlibFigure"]:
    """The figure painted in our style, to be saved inside the block."""
    from matplotlib import style
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.rcsetup import cycler

    ours = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,  # class names may hold a $
        "font.size": TEXT,
        "axes.titlesize": TEXT,
        "axes.linewidth": 0.6,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=[colour(variable) for variable in SERIES]),
        "text.color": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "grid.color": FAINT,
        "grid.alpha": 0.35,
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }
    with style.context(["default", ours]), warnings.catch_warnings():
        # matplotlib only measures with its own font; the page's font may well have these letters.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        sheet = MatplotlibFigure(figsize=(WIDTH, figure.height), layout="constrained")
        figure.paint(sheet)
        yield sheet


def _svg(sheet: "MatplotlibFigure") -> str:
    """Everything has its place afterwards: finding it again takes as long as drawing."""
    target = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    sheet.savefig(target, format="svg", transparent=True, metadata=nothing)
    sheet.set_layout_engine("none")
    text = target.getvalue()
    return text[text.index("<svg") :]  # without the document type, which names an address


def for_page(svg: str) -> str:
    """The bare element: no outside addresses, no fixed colours, no fonts, no style sheet, no ids that nothing refers to."""
    svg = svg[svg.index("<svg") :].replace(PAPER, "").rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*(?:<style.*?</style>\s*)?</defs>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<image href="data:image/png;base64,)\s*([^"]*?)\s*" id="[^"]*"', r'\1\2"', svg)
    svg = re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font-size: \1", svg)  # how older versions write it
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    for variable, (light, _) in PALETTE.items():
        svg = svg.replace(light, f"var(--{variable})")
    # Smaller: groups around a single element, rotations by nothing, blanks in paths, digits beyond a hundredth of a point (but
    # for the matrix of an image, whose hundredths are multiplied by many pixels).
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    svg = re.sub(r"<g>(<path[^>]*/>|<text[^>]*>[^<]*</text>)</g>", r"\1", svg)
    svg = re.sub(r' (?:d|x|y|transform)="(?!matrix)[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    return re.sub(r' d="[^"]*"', lambda found: re.sub(r"\s*\b([MLCQz])\s+", r"\1", found[0]), svg)
