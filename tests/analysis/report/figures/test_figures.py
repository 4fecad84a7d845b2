"""Each kind of figure: what is drawn from which numbers."""

import math
import re

import pytest

from dynavit.analysis.report.figures.canvas import svg_element
from dynavit.analysis.report.figures.confusion import confused_pairs, confusion_figure, stored_cells
from dynavit.analysis.report.figures.curves import MOST_POINTS, curves_figure, over_seeds, settled_range
from dynavit.analysis.report.figures.dots import DotRow, dots_figure, mean_row, mean_rows_caption
from dynavit.analysis.report.figures.ladder import ladder_figure
from dynavit.analysis.report.figures.lambdas import lambda_at_end, lambda_over_training
from dynavit.analysis.report.figures.numbers import numbers
from dynavit.analysis.report.figures.over_layers import LayerLine, layers_figure
from dynavit.analysis.report.figures.trade_off import trade_off_figure

LARGEST = 150_000  # characters of one figure


def words(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


# ---- Curves


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


def test_curves_of_many_seeds_and_settings_stay_small():
    noisy = [{epoch: (7919 * epoch * seed) % 1000 / 1000 for epoch in range(1, 301)} for seed in range(1, 4)]
    curves = [(number, over_seeds(noisy)) for number in range(-1, 9)]
    assert 1_000 < len(svg_element("curves", curves_figure("", "", "accuracy, %", curves, 100))) < LARGEST


# ---- Dots


def test_accuracies_stand_over_the_lines_of_simple_readers():
    rungs = [{"name": "majority", "accuracy": 0.17}, {"name": "root operator", "accuracy": 0.37}]
    rows = [DotRow("ln", -1, 36.5, (35.0, 38.0)), DotRow("in", 0, 22.0)]
    figure = ladder_figure("label", "caption", rows, rungs)
    drawn = svg_element("ladder", figure)
    assert {"ln", "in", "majority", "root", "operator", "accuracy, %"} <= set(words(drawn))
    assert drawn.count("stroke-dasharray") == 2
    assert ladder_figure("", "", [], rungs) is None and ladder_figure("", "", rows, []) is None


def test_the_mean_of_seeds_has_an_interval_of_one_standard_error():
    row = mean_row("ln", -1, [1.0, 2.0, 3.0])
    assert row.value == 2.0 and row.parts == [1.0, 2.0, 3.0]
    assert row.interval == pytest.approx((2 - 1 / math.sqrt(3), 2 + 1 / math.sqrt(3)))
    assert "standard error" in mean_rows_caption([row, mean_row("one", 0, [1.0])])
    alone = mean_row("one", 0, [1.0])
    assert alone.interval is None and mean_rows_caption([alone]) == "Each dot is a single seed."


# ---- Confusion


def test_strange_class_names_stay_words():
    names = ["<script>1</script>", "a$b$c", "鳥 & bird"]
    svg = svg_element("c", confusion_figure("", "", stored_cells([[5, 1, 0], [0, 6, 0], [2, 0, 4]]), names))
    assert "<script" not in svg
    assert {"&lt;script&gt;1&lt;/script&gt;", "a$b$c", "鳥 &amp; bird"} <= set(words(svg))


def test_the_largest_confusion_stays_small():
    figure = confusion_figure("", "", stored_cells([[10] * 20] * 20), [f"class {i}" for i in range(20)])
    assert 1_000 < len(svg_element("c", figure)) < LARGEST


def test_confused_pairs_are_the_most_frequent_mistakes():
    assert confused_pairs(stored_cells([[9, 0, 2], [5, 9, 0], [0, 1, 9]]), most=2) == [(1, 0, 5), (0, 2, 2)]


# ---- λ


HEADS, LAYERS = 12, [f"blocks.{block}.norm{norm}" for block in range(12) for norm in (1, 2)]


def test_lambda_shows_every_layer_and_head_at_the_end():
    layers = {path: [0.5 + 0.4 * math.sin(row + head) for head in range(HEADS)] for row, path in enumerate(LAYERS)}
    figure = lambda_at_end("dtn-seed0", "mean", 3.0, layers)
    assert "dtn-seed0 at epoch 3: a row for each layer" in figure.caption
    svg = svg_element("λ", figure)
    found = sorted(word for word in words(svg) if re.fullmatch(r"0\.\d\d", word))
    assert found == sorted(f"{value:.2f}" for values in layers.values() for value in values)
    assert set(layers) <= set(words(svg)) and 1_000 < len(svg) < LARGEST


def test_lambda_over_training_stays_small():
    paths = [[(7919 * epoch * head) % 1000 / 1000 for head in range(HEADS)] for epoch in range(300)]
    svg = svg_element("λ", lambda_over_training("a", "mean", range(300), dict.fromkeys(LAYERS, paths)))
    assert set(LAYERS) <= set(words(svg)) and 1_000 < len(svg) < LARGEST


@pytest.mark.parametrize("order", [1, -1])
def test_the_legend_names_the_heads_of_the_layer_that_has_most(order):
    layers = dict([("few", [[0.1]] * 2), ("many", [[0.1, 0.2, 0.3]] * 2)][::order])
    svg = svg_element("λ", lambda_over_training("a", "mean", [1, 2], layers))
    assert [word for word in words(svg) if word.startswith("head")] == ["head 0", "head 1", "head 2"]


# ---- Others


def test_the_trade_off_marks_line_exits_and_choice():
    points = [(1.0, 0.5), (2.0, 0.6)]
    svg = svg_element("f", trade_off_figure("", "", "GMACs", points, points, (1.5, 0.55)))
    assert "var(--series-1)" in svg and "var(--series-2)" in svg and "var(--ink)" in svg
    assert {"1", "2", "accuracy, %"} <= set(words(svg)) and not re.search(r"#[0-9a-f]{6}", svg)
    without_line = svg_element("f", trade_off_figure("", "", "GMACs", [], points, (1.5, 0.55)))
    assert "var(--series-1)" not in without_line and "var(--series-2)" in without_line


def test_a_run_without_values_keeps_its_colour_free():
    """Series are numbered by run, so that a run has the same colour in all figures."""
    nothing, values = numbers([None, None]), numbers([1.0, None])
    svg = svg_element("f", layers_figure("", "", "", ["a", "b"], [LayerLine("x", nothing), LayerLine("y", values)]))
    assert "var(--series-2)" in svg and "var(--series-1)" not in svg


def test_there_is_no_figure_of_nothing():
    assert curves_figure("", "", "", [(0, over_seeds([{}]))]) is None
    assert dots_figure("", "", "", []) is None
    assert confusion_figure("", "", [], []) is None
    assert confusion_figure("", "", [[1] * 21] * 21, [""] * 21) is None
    assert layers_figure("", "", "", ["a"], [LayerLine("x", numbers([None]))]) is None


def test_a_line_of_dots_marks_what_they_are_compared_with():
    svgs = [svg_element("f", dots_figure("", "", "", [DotRow("a", 0, 1.0)], line_at=at)) for at in (None, 1.0)]
    assert svgs[1].count("<path") == svgs[0].count("<path") + 1
