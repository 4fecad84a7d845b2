"""Drawing onto a page that may be light or dark: figures name colours, the page's style sheet gives them.

matplotlib writes SVG with fixed colours. We draw with the light ones and replace each by a CSS variable afterwards, so that one
figure follows the reader's colour scheme. Text stays text, in the page's own font. Figures that are files of their own keep the
light colours and bring white paper.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
DOTS_PER_INCH = 200
PAPER = '<rect width="100%" height="100%" style="fill: #ffffff"/>'


def series_style(number: int) -> tuple[str, tuple[float, ...]]:
    """(colour variable, dashes) of series `number`; number -1 is the baseline, in ink."""
    return ("ink", ()) if number < 0 else (SERIES[number % len(SERIES)], DASHES[number % len(DASHES)])


def colour(variable: str) -> str:
    """What to tell matplotlib."""
    return PALETTE[variable][0]


def draw(name: str, height: float, paint: Callable[["Axes"], None]) -> str:
    """An `<svg>` element, `height` inches high. `name` keeps the ids of several figures on a page apart."""
    with _empty(name, height) as figure:
        paint(figure.add_subplot())
        return for_page(_svg(figure))


def draw_files(name: str, height: float, paint: Callable[["Figure"], None]) -> tuple[str, bytes]:
    """The same figure as an SVG file and as a PNG file, both on white paper; `for_page` makes the SVG an element of a page."""
    with _empty(name, height) as figure:
        paint(figure)
        svg = re.sub("(<svg[^>]*>)", rf"\1\n {PAPER}", _svg(figure), count=1)
        figure.set_layout_engine(None)  # everything has its place now; finding it again takes as long as drawing
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=DOTS_PER_INCH, facecolor="#ffffff", metadata={"Software": None})
        return f'<?xml version="1.0" encoding="utf-8"?>\n{svg}', png.getvalue()


@contextmanager
def _empty(name: str, height: float) -> Iterator["Figure"]:
    """A figure in our style, to be drawn on and saved inside the block."""
    from matplotlib import style
    from matplotlib.figure import Figure

    ours = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,  # class names may hold a $
        "font.size": 8.5,
        "axes.linewidth": 0.6,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.color": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "grid.color": FAINT,
        "grid.alpha": 0.35,
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
    }
    with style.context(["default", ours]), warnings.catch_warnings():
        # matplotlib only measures with its own font; the page's font may well have these letters.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def _svg(figure: "Figure") -> str:
    target = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    text = target.getvalue()
    return text[text.index("<svg") :]  # without the document type, which names an address


def for_page(svg: str) -> str:
    """The bare element: no outside addresses, no fixed colours, no fonts, no style sheet, no ids that nothing refers to."""
    svg = svg[svg.index("<svg") :].replace(PAPER, "").rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'<svg[^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<image href="data:image/png;base64,)\s*([^"]*?)\s*" id="[^"]*"', r'\1\2"', svg)
    svg = re.sub(r"font: ([^;\"]*?px) [^;\"]*", r"font-size: \1", svg)  # how older versions write it
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    for variable, (light, _) in PALETTE.items():
        svg = svg.replace(light, f"var(--{variable})")
    # Smaller: groups around a single element, rotations by nothing, digits beyond a hundredth of a point (but for the matrix of
    # an image, whose hundredths are multiplied by many pixels).
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    svg = re.sub(r"<g>(<path[^>]*/>|<text[^>]*>[^<]*</text>)</g>", r"\1", svg)
    return re.sub(r' (?:d|x|y|transform)="(?!matrix)[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
