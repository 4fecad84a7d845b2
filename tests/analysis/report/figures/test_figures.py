import re

import pytest

from analysis.report.made_up import make_run
from dynavit.analysis.report.figures.canvas import PALETTE, SERIES, series_style
from dynavit.analysis.report.figures.cells import confused_pairs, confusion_figure, lambda_figure
from dynavit.analysis.report.figures.curves import MOST_POINTS, curves_figure, lambda_paths_figure, over_seeds, settled_range
from dynavit.analysis.report.figures.dots import DotRow, dots_figure
from dynavit.analysis.report.read import read_run

LARGEST = 150_000  # characters of one figure


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(make_run(tmp_path_factory.mktemp("figures") / "run", norm="dtn", layers=12, heads=12, epochs=3))


def words(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_figure_takes_its_colours_and_font_from_the_page():
    svg = dots_figure("a", "accuracy", [DotRow("ln", -1, 1.0, (0.5, 1.5), [0.6, 1.4]), DotRow("dtn", 0, 2.0)])
    assert svg.startswith("<svg viewBox=") and svg.endswith("</svg>")
    assert {"ln", "dtn", "accuracy"} <= set(words(svg))
    assert "var(--ink)" in svg and "var(--series-1)" in svg
    assert not re.search(r"#[0-9a-f]{6}|http|xmlns|DejaVu|font-family|font:|<image|<style", svg)


def test_ids_are_the_figures_own_and_all_references_resolve():
    row = [DotRow("ln", 0, 1.0, (0.5, 1.5), [0.6, 1.4])]
    first, second = (dots_figure(name, "accuracy", row) for name in "ab")
    ids = [set(re.findall(r'id="([^"]*)"', svg)) for svg in (first, second)]
    assert ids[0] and not ids[0] & ids[1]
    for svg, known in zip((first, second), ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', svg)) == known


def test_the_same_numbers_give_the_same_bytes():
    row = [DotRow("ln", 0, 1.0)]
    assert dots_figure("a", "x", row) == dots_figure("a", "x", row)


def test_strange_class_names_stay_words():
    names = ["<script>1</script>", "a$b$c", "鳥 & bird"]
    svg = confusion_figure("c", [[5, 1, 0], [0, 6, 0], [2, 0, 4]], names)
    assert "<script" not in svg
    assert {"&lt;script&gt;1&lt;/script&gt;", "a$b$c", "鳥 &amp; bird"} <= set(words(svg))


def test_mean_and_band_over_the_epochs_that_all_seeds_have():
    curve = over_seeds([{1: 1.0, 2: 2.0, 3: 9.0}, {1: 3.0, 2: 5.0}, {}])
    assert (curve.epochs, curve.mean, curve.low, curve.high) == ([1, 2], [2.0, 3.5], [1.0, 2.0], [3.0, 5.0])


def test_long_curves_are_thinned_and_keep_their_ends():
    curve = over_seeds([{epoch: 1 / epoch for epoch in range(1, 1001)}])
    assert (len(curve.epochs), curve.epochs[0], curve.epochs[-1]) == (MOST_POINTS, 1, 1000)


def test_the_range_leaves_out_the_first_quarter_only():
    low, high = settled_range([[100.0, 9.0, 5.0, 4.0], [90.0, 8.0, 5.0, 1.0]])
    assert 0 < low < 1 and 9 < high < 10
    low, high = settled_range([[0.0]])
    assert low < 0 < high


def test_the_largest_figures_stay_small(run):
    noisy = [{epoch: (7919 * epoch * seed) % 1000 / 1000 for epoch in range(1, 301)} for seed in range(1, 4)]
    curves = [(number, over_seeds(noisy)) for number in range(-1, 9)]
    figures = [
        curves_figure("accuracy", "accuracy, %", curves, percent=True),
        lambda_figure(run, "lambda_mean"),
        lambda_paths_figure(run, "lambda_mean", "λ"),
        confusion_figure("c", [[10] * 20] * 20, [f"class {i}" for i in range(20)]),
    ]
    for svg in figures:
        assert 1_000 < len(svg) < LARGEST


def test_lambda_shows_every_layer_and_head(run):
    svg = lambda_figure(run, "lambda_mean")
    layers = run.per_head("lambda_mean")[-1][1]
    numbers = [f"{value:.2f}" for values in layers.values() for value in values]
    shown = words(svg)
    assert len(numbers) == 24 * 12 and set(layers) <= set(shown)
    assert sorted(word for word in shown if re.fullmatch(r"0\.\d\d", word)) == sorted(numbers)


def test_there_is_no_figure_of_nothing(run, tmp_path):
    without = read_run(make_run(tmp_path / "ln", norm="ln"))
    assert lambda_figure(without, "lambda_mean") is None
    assert lambda_paths_figure(without, "lambda_mean", "λ") is None
    assert curves_figure("a", "a", [(0, over_seeds([{}]))]) is None
    assert dots_figure("a", "a", []) is None
    assert confusion_figure("a", [], []) is None
    assert confusion_figure("a", [[1] * 21] * 21, [""] * 21) is None


def test_confused_pairs_are_the_most_frequent_mistakes():
    assert confused_pairs([[9, 0, 2], [5, 9, 0], [0, 1, 9]], most=2) == [(1, 0, 5), (0, 2, 2)]


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
