"""Boxes, masks and names on pictures, and pictures on a sheet. Needs Pillow alone.

A colour belongs to the name of a class, wherever it is drawn.
"""

import colorsys
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ..data.detection.rle import decode

Colour = tuple[int, int, int]
Box = tuple[float, float, float, float]

READABLE = 480  # pixels of a picture's longer side, below which it is enlarged: names would cover it
LARGEST = 2000  # ... and above which it is made smaller: more is not seen, and masks of a photograph take long
VEIL = 0.4  # how much of a mask's colour covers the picture
DASH = 2.5  # lengths of a dash, in line widths
PAPER, INK, QUIET = (253, 253, 252), (28, 31, 35), (110, 116, 122)
MISSED: Colour = (214, 64, 50)


def draw_detections(
    image: Image.Image,
    result: Mapping[str, Any],
    classes: Sequence[str],
    *,
    score: float = 0.5,
    truth: Mapping[str, Any] | None = None,
) -> Image.Image:
    """The picture with what was found in it; with `truth`, what is annotated stands at its left, dashed.

    A small picture is enlarged, and a very large one made smaller.

    Args:
        result: {"boxes" (k, 4) x1 y1 x2 y2, "scores", "labels", "masks": run lengths or None} in the picture's pixels.
        score: less sure ones are left out.
        truth: {"boxes", "labels", "masks", "crowd_boxes"} likewise.
    """
    scores = np.asarray(result["scores"], np.float64)
    kept = [place for place in np.argsort(scores, kind="stable") if scores[place] >= score]  # the surest on top
    names = [f"{classes[int(result['labels'][place])]} {scores[place]:.2f}" for place in kept]
    found = _with_objects(image, _chosen(result, kept), classes, names)
    if truth is None:
        return found
    every = list(range(len(truth["labels"])))
    wanted = _with_objects(image, _chosen(truth, every), classes, [classes[int(each)] for each in truth["labels"]], dashed=True)
    crowds = np.asarray(truth.get("crowd_boxes", ()), np.float64).reshape(-1, 4)
    painter = ImageDraw.Draw(wanted)
    for box in crowds * _scale(image):
        _frame(painter, _as_box(box), QUIET, _line(wanted), dashed=True)
    return side_by_side([wanted, found], ["annotated", "found"])


def contact_sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str] = (), *, columns: int = 2, width: int = 1160
) -> Image.Image:
    """Pictures in rows that are as wide as the sheet, those of a row equally high, each with a line of words below."""
    if not pictures:
        raise ValueError("a contact sheet needs at least one picture")
    gap, line, font = 14, 24 if any(captions) else 0, _font(15)
    words = [*captions, *[""] * (len(pictures) - len(captions))]
    rows = [range(start, min(start + columns, len(pictures))) for start in range(0, len(pictures), columns)]
    heights = [_row_height([pictures[place] for place in row], columns, width - gap * (columns + 1)) for row in rows]
    sheet = Image.new("RGB", (width, sum(heights) + (gap + line) * len(rows) + gap), PAPER)
    painter, top = ImageDraw.Draw(sheet), gap
    for row, height in zip(rows, heights, strict=True):
        left = gap
        for place in row:
            picture = pictures[place]
            wide = max(1, round(picture.width * height / picture.height))
            sheet.paste(picture.resize((wide, height), Image.Resampling.LANCZOS), (left, top))
            painter.text((left, top + height + 4), words[place], QUIET, font)
            left += wide + gap
        top += height + line + gap
    return sheet


def _row_height(row: Sequence[Image.Image], columns: int, width: int) -> int:
    """Such that the row fills the width; lower where that would be higher than a square in each of the columns."""
    return max(1, min(round(width / sum(picture.width / picture.height for picture in row)), width // columns))


def cut_out(
    image: Image.Image, box: Sequence[float], colour: Colour, *, side: int = 150, other: Sequence[float] | None = None
) -> Image.Image:
    """A square around a box, `side` pixels wide, with the box drawn, and dashed the `other` one, an object's."""
    x1, y1, x2, y2 = box if other is None else (*np.minimum(box[:2], other[:2]), *np.maximum(box[2:], other[2:]))
    half = max(0.7 * max(x2 - x1, y2 - y1), 12.0)
    left, top = (x1 + x2) / 2 - half, (y1 + y2) / 2 - half
    area = image.transform(
        (side, side),
        Image.Transform.EXTENT,
        (left, top, left + 2 * half, top + 2 * half),
        Image.Resampling.BICUBIC,
        fillcolor=PAPER,
    )
    scale, painter = side / (2 * half), ImageDraw.Draw(area)
    for each, dashed in ((other, True), (box, False)):
        if each is not None:
            moved = (np.asarray(each) - [left, top, left, top]) * scale
            _frame(painter, _as_box(moved), INK if dashed else colour, 2, dashed=dashed)
    return area


def side_by_side(pictures: Sequence[Image.Image], titles: Sequence[str]) -> Image.Image:
    """Pictures of one size beside each other, each below its title."""
    font, gap = _font(16), 10
    width, height = pictures[0].size
    sheet = Image.new("RGB", (len(pictures) * width + gap * (len(pictures) - 1), height + 26), PAPER)
    painter = ImageDraw.Draw(sheet)
    for place, (picture, title) in enumerate(zip(pictures, titles, strict=True)):
        left = place * (width + gap)
        painter.text((left + 2, 4), title, QUIET, font)
        sheet.paste(picture, (left, 26))
    return sheet


def colour_of(name: str) -> Colour:
    """The same for the same name: its hash chooses the hue, and from three each the strength and the brightness.

    >>> colour_of("person") == colour_of("person") != colour_of("dog")
    True
    """
    number = zlib.crc32(name.encode())
    hue, strength, bright = number % 360 / 360, (0.65, 0.8, 0.95)[number // 360 % 3], (0.8, 0.9, 1.0)[number // 1080 % 3]
    red, green, blue = colorsys.hsv_to_rgb(hue, strength, bright)
    return round(255 * red), round(255 * green), round(255 * blue)


# ---- Inside one picture


def _chosen(objects: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    boxes, labels = np.asarray(objects["boxes"], np.float64).reshape(-1, 4), np.asarray(objects["labels"])
    masks = objects.get("masks")
    return {"boxes": boxes[places], "labels": labels[places], "masks": masks and [masks[place] for place in places]}


def _with_objects(
    image: Image.Image, objects: Mapping[str, Any], classes: Sequence[str], names: Sequence[str], dashed: bool = False
) -> Image.Image:
    colours = [colour_of(classes[int(label)]) for label in objects["labels"]]
    times = _scale(image)
    picture = image.convert("RGB")
    if times != 1:
        picture = picture.resize((round(image.width * times), round(image.height * times)), Image.Resampling.BICUBIC)
    if objects["masks"]:
        picture = _veiled(picture, objects["masks"], colours)
    painter, line = ImageDraw.Draw(picture), _line(picture)
    boxes = [_as_box(box * times) for box in objects["boxes"]]
    for box, colour in zip(boxes, colours, strict=True):
        _frame(painter, box, colour, line, dashed)
    _names(painter, picture.size, boxes, colours, names)
    return picture


def _veiled(picture: Image.Image, masks: Sequence[Mapping[str, Any]], colours: Sequence[Colour]) -> Image.Image:
    """Each mask in its colour at 40 %, with a line along its border."""
    pixels = np.asarray(picture, np.float64).copy()
    for rle, colour in zip(masks, colours, strict=True):
        mask = np.asarray(Image.fromarray(decode(rle)).resize(picture.size, Image.Resampling.NEAREST))
        pixels[mask] = (1 - VEIL) * pixels[mask] + VEIL * np.array(colour)
        pixels[_border(mask, max(1, _line(picture) // 2))] = colour
    return Image.fromarray(pixels.round().astype(np.uint8))


def _border(mask: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """Pixels of a mask that are near its outside; the picture's edge is no border."""
    inner = mask.copy()
    for _ in range(width):
        padded = np.pad(inner, 1, mode="edge")
        inner = inner & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask & ~inner


def _frame(painter: ImageDraw.ImageDraw, box: Box, colour: Colour, line: int, dashed: bool = False) -> None:
    """A box; one that is not dashed has a thin dark edge, so that it is seen on any ground."""
    x1, y1, x2, y2 = box
    if dashed:
        corners = [(x1, y1), (x2, y1), (x2, y2), (x1, y2), (x1, y1)]
        for start, end in pairwise(corners):
            _dashes(painter, start, end, colour, line)
        return
    x2, y2 = max(x1, x2), max(y1, y2)
    painter.rectangle((x1 - 1, y1 - 1, x2 + 1, y2 + 1), outline=(0, 0, 0))
    painter.rectangle((x1, y1, x2, y2), outline=colour, width=line)


def _dashes(
    painter: ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float], colour: Colour, line: int
) -> None:
    begin, far = np.array(start), np.array(end) - np.array(start)
    pieces = max(1, round(float(np.abs(far).sum()) / (2 * DASH * line)))
    for piece in range(pieces):
        painter.line([tuple(begin + far * (piece + share) / pieces) for share in (0.0, 0.55)], colour, line)


def _names(
    painter: ImageDraw.ImageDraw, size: tuple[int, int], boxes: Sequence[Box], colours: Sequence[Colour], names: Sequence[str]
) -> None:
    """Names above their boxes, inside where there is no room, and further down where another one stands."""
    font = _font(max(13, round(max(size) / 55)))
    high = font.getbbox("Ag")[3] + 5
    placed: list[Box] = []
    for (x1, y1, _, _), colour, name in zip(boxes, colours, names, strict=True):
        wide = font.getlength(name) + 8
        left, top = min(max(x1, 0), max(size[0] - wide, 0)), y1 - high if y1 >= high else y1
        for _ in range(len(placed)):
            if not any(_touch((left, top, left + wide, top + high), tag) for tag in placed):
                break
            top += high
        top = min(max(top, 0), max(size[1] - high, 0))
        placed.append((left, top, left + wide, top + high))
        dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 140
        painter.rectangle((left, top, left + wide, top + high), fill=colour)
        painter.text((left + 4, top + 2), name, (255, 255, 255) if dark else (0, 0, 0), font)


def _touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _as_box(values: Any) -> Box:
    x1, y1, x2, y2 = (float(value) for value in values)
    return x1, y1, x2, y2


def _scale(image: Image.Image) -> float:
    """From the picture to the drawn one."""
    longer = max(image.size)
    return min(max(longer, READABLE), LARGEST) / longer


def _line(picture: Image.Image) -> int:
    return max(2, round(max(picture.size) / 320))


def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
