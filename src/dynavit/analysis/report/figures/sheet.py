"""Pictures and heat maps on one sheet, all on the same colour scale. Lengths are inches from the top left corner."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .canvas import LOW, SMALL, TEXT, WIDTH
from .numbers import Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

COLOURS = "cividis"  # even to the eye, and for colour-blind readers too
GAP = 0.06
EDGE = 0.03  # of paper around everything
LINE = 0.19  # height of a line of small words
BAR_HEIGHT = 0.46
FRAME = 1.0  # points
MOST_PIXELS = 112  # of a picture's side: more cannot be seen at this size, and every figure carries its own


@dataclass(frozen=True)
class Scale:
    """Colours from `low` to `high`; by square roots if `root`, so that small values can be told apart."""

    label: str
    low: float
    high: float
    root: bool = False
    more: bool = False  # some values lie beyond the ends and have their colours


def columns_for(heads: int) -> int:
    """Number of maps in a row.

    >>> [columns_for(heads) for heads in (1, 3, 6, 8, 9, 12, 16, 24)]
    [4, 4, 6, 8, 5, 6, 8, 8]
    """
    rows = -(-heads // 8)
    return max(4, -(-heads // rows))


class Sheet:
    def __init__(self, figure: "MatplotlibFigure", height: float) -> None:
        figure.set_layout_engine("none")  # places are given
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(-EDGE, WIDTH + EDGE), ylim=(height + EDGE, -EDGE), autoscale_on=False)
        self.axes.axis("off")

    def words(self, left: float, top: float, text: str, **style: Any) -> None:
        """`top` is that of the line they stand in."""
        self.axes.text(left, top + LINE / 2, text, **{"fontsize": SMALL, "va": "center_baseline", **style})

    def title(self, left: float, top: float, text: str) -> None:
        """The name of the run that a figure is about."""
        self.words(left, top, text, fontsize=TEXT, fontweight="bold")

    def heat(self, left: float, top: float, width: float, values: Numbers, scale: Scale) -> None:
        """(r, c) values; as high as the grid is for its width."""
        from matplotlib.colors import Normalize, PowerNorm

        norm = PowerNorm(0.5, scale.low, scale.high) if scale.root else Normalize(scale.low, scale.high)
        self._image(left, top, width, map_height(width, values), values, norm=norm, cmap=COLOURS)

    def mark(self, left: float, top: float, width: float, values: Numbers, token: tuple[int, int]) -> None:
        """A frame around one cell of a heat map."""
        from matplotlib.patches import Rectangle

        cell, outside = width / values.shape[1], 0.5 * FRAME / 72  # so that it hides nothing of a small cell
        corner, side = (left + token[1] * cell - outside, top + token[0] * cell - outside), cell + 2 * outside
        self.axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=LOW, lw=FRAME, joinstyle="miter"))

    def picture(self, left: float, top: float, width: float, address: str) -> None:
        """An image that was stored as a data address, as large as fits into a square. Others are not fetched."""
        from ....common.pictures import open_picture

        if not address.startswith("data:image/"):
            return
        image = open_picture(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")
        image.thumbnail((MOST_PIXELS, MOST_PIXELS))
        unit = width / max(image.size)
        self._image(left, top, unit * image.width, unit * image.height, np.asarray(image))

    def bar(self, left: float, top: float, scale: Scale, width: float = 1.7) -> None:
        """A legend of the colours."""
        steps = np.linspace(0, 1, 128)[None]
        self.words(left, top, scale.label)
        self._image(left, top + LINE, width, 0.1, steps, cmap=COLOURS, vmin=0, vmax=1)
        middle = scale.low + (scale.high - scale.low) / (4 if scale.root else 2)
        texts = [_text(scale.low), _text(middle), _text(scale.high)]
        if scale.more:
            texts = [f"≤ {texts[0]}" if scale.low > 0 else texts[0], texts[1], f"≥ {texts[2]}"]
        for place, (text, align) in enumerate(zip(texts, ("left", "center", "right"), strict=True)):
            self.words(left + width * place / 2, top + LINE + 0.1, text, ha=align)

    def _image(self, left: float, top: float, width: float, height: float, values: Any, **colours: Any) -> None:
        extent = (left, left + width, top + height, top)
        self.axes.imshow(values, extent=extent, aspect="auto", interpolation="none", **colours)


def map_height(width: float, values: Numbers) -> float:
    return width * values.shape[-2] / values.shape[-1]


def tile_width(columns: int, width: float = WIDTH) -> float:
    return (width - (columns - 1) * GAP) / columns


Layers = Sequence[tuple[str, Numbers]]  # a line of words and (h, r, c) maps each


def layers_height(layers: Layers) -> float:
    return sum(LINE + _maps_height(maps) for _, maps in layers)


def draw_layers(sheet: Sheet, top: float, layers: Layers, scale: Scale) -> None:
    """Layers below each other: words, then maps from left to right, in as many rows as they need."""
    for text, maps in layers:
        sheet.words(0, top, text)
        columns = columns_for(len(maps))
        width = tile_width(columns)
        for head, values in enumerate(maps):
            row, column = divmod(head, columns)
            sheet.heat(column * (width + GAP), top + LINE + row * (map_height(width, maps) + GAP), width, values, scale)
        top += LINE + _maps_height(maps)


def _maps_height(maps: Numbers) -> float:
    columns = columns_for(len(maps))
    return -(-len(maps) // columns) * (map_height(tile_width(columns), maps) + GAP)


def _text(value: float) -> str:
    return f"{value:.2g}"
