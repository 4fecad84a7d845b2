"""Drawing: onto a page, and into files."""

import io
import re
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from dynavit.analysis.report import Figure
from dynavit.analysis.report.figures.canvas import (
    DOTS_PER_INCH,
    PALETTE,
    SERIES,
    WIDTH,
    for_page,
    series_style,
    svg_and_png,
    svg_element,
)
from dynavit.analysis.report.figures.dots import DotRow, dots_figure

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [DotRow("ln", -1, 1.0, (0.5, 1.5), [0.6, 1.4]), DotRow("dtn", 0, 2.0)]


@pytest.fixture(scope="module")
def dots():
    return dots_figure("label", "caption", "accuracy", ROWS)


@pytest.fixture(scope="module")
def element(dots):
    return svg_element("a", dots)


def words(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_figure_takes_its_colours_and_font_from_the_page(element):
    assert element.startswith("<svg viewBox=") and element.endswith("</svg>")
    assert {"ln", "dtn", "accuracy"} <= set(words(element))
    assert "var(--ink)" in element and "var(--series-1)" in element
    assert not re.search(r"#[0-9a-f]{6}|http|xmlns|DejaVu|font-family|font:|<image|<style", element)


def test_ids_are_the_figures_own_and_all_references_resolve(dots, element):
    both = (element, svg_element("b", dots))
    ids = [set(re.findall(r'id="([^"]*)"', svg)) for svg in both]
    assert ids[0] and not ids[0] & ids[1]
    for svg, known in zip(both, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', svg)) == known


def test_the_same_numbers_give_the_same_bytes(dots, element):
    assert svg_element("a", dots) == element


def test_files_are_the_same_figure_on_white_paper(dots, element):
    svg, png = svg_and_png("a", dots)
    assert for_page(svg) == element
    root = ET.fromstring(svg)
    assert root[0].tag == f"{SVG}rect" and "#ffffff" in root[0].get("style") and "var(--" not in svg
    image = Image.open(io.BytesIO(png))
    assert image.size == (round(WIDTH * DOTS_PER_INCH), round(dots.height * DOTS_PER_INCH))
    assert image.getpixel((0, 0))[:3] == (255, 255, 255)


def test_a_guests_plain_plot_follows_the_page():
    """`paint` is given an empty figure in our style and need not know about it."""

    def paint(figure):
        axes = figure.add_subplot()
        for level in range(len(SERIES)):
            axes.plot([0, 1], [level, level])
        axes.set_title("<b>&amp;")

    svg = svg_element("guest", Figure("label", "caption", 2.0, paint))
    assert all(f"var(--{name})" in svg for name in SERIES)
    assert not re.search(r"#[0-9a-f]{6}|<b>", svg)


def test_series_differ_in_colour_or_dashes():
    styles = [series_style(number) for number in range(-1, 3 * len(SERIES))]
    assert len(set(styles)) == len(styles)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", SERIES)
def test_series_stand_out_from_light_and_dark_paper(name):
    for colour, paper in zip(PALETTE[name], ("#fdfdfc", "#15171a"), strict=True):
        high, low = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3
