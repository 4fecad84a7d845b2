"""What the page of a calibrated cascade says."""

import json
import re

import pytest

from analysis.report.made_up import make_comparison, make_run
from analysis.report.test_report import Outline
from dynavit.analysis.report import write_report
from dynavit.analysis.report.figures.trade_off import trade_off_figure
from dynavit.analysis.report.page import Figures, Samples, Table, Text
from dynavit.analysis.report.read import read_run
from dynavit.analysis.report.sections.early_exit import early_exit_section

CALIBRATION = "analysis/calibration.json"


@pytest.fixture
def directory(tmp_path):
    return make_run(tmp_path / "cascade", exits=3)


def section(directory, **changes):
    found = json.loads((directory / CALIBRATION).read_text())
    (directory / CALIBRATION).write_text(json.dumps(found | changes))
    return early_exit_section(read_run(directory))


def blocks(found, kind):
    return [block for block in found.blocks if isinstance(block, kind)]


def test_a_run_without_thresholds_has_no_section(tmp_path):
    directory = make_run(tmp_path / "plain")
    assert early_exit_section(read_run(directory)).blocks == []
    assert "Early exit" not in write_report(directory).read_text()


def test_the_section_stands_after_training_and_calibration_is_no_evaluation(directory):
    outline = Outline(write_report(directory).read_text())
    assert outline.open == []
    assert outline.text["h2"][2:5] == ["Training", "Early exit", "Mistakes and samples"]
    assert list(read_run(directory).evaluations) == ["test"]


def test_a_comparison_shows_that_of_its_example(tmp_path):
    directory = make_comparison(tmp_path / "c", accuracies={"ln": [0.96, 0.95], "dtn": [0.97, 0.96]})
    made = make_run(tmp_path / "other", exits=2)
    assert "Early exit" not in Outline(write_report(directory).read_text()).text["h2"]
    (made / "analysis").rename(directory / "dtn-seed0" / "analysis")
    assert "Early exit" in Outline(write_report(directory).read_text()).text["h2"]


def test_the_words_say_how_thresholds_were_found_and_judged(directory):
    (text,) = blocks(section(directory), Text)
    assert "on 144 images, the validation split of digits, for this goal: at least 95.00% accuracy" in text.text
    assert "judged on 360 images, the test split of digits" in text.text
    assert "its largest probability, reaches" in text.text


def test_judging_on_the_same_images_is_admitted(directory):
    _, warning = blocks(section(directory, split="val"), Text)
    assert "Both are the same images" in warning.text


def test_the_table_has_a_row_for_each_exit_and_one_for_early_exit(directory):
    (table,) = blocks(section(directory), Table)
    assert table.rows == [
        ["exit 1", "0.900", "75.00", "95.00", "0.4", "1.7"],
        ["exit 2", "0.800", "18.75", "96.00", "1.2", "5.1"],
        ["exit 3", "always", "6.25", "97.00", "3.6", "15.3"],
        ["early exit", "", "100.00", "96.90", "0.75", "3.3"],
    ]
    assert len(table.header) == 6
    assert "batches of 64" in table.notes[1]


def test_two_figures_over_operations_and_over_time(directory):
    (figures,) = blocks(section(directory), Figures)
    assert [figure.label for figure in figures.figures] == [
        "Accuracy over GMACs per image",
        "Accuracy over ms per image, batches of 64",
    ]
    for figure in figures.figures:
        assert "line" in figure.caption or "The same" in figure.caption
        assert {"1", "2", "3", "accuracy, %"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg))


def test_without_other_thresholds_there_is_no_line_and_no_word_of_it(directory):
    (figures,) = blocks(section(directory, curve=[], measured=[]), Figures)
    for figure in figures.figures:
        assert figure.caption.startswith("Squares are single exits")
        assert "var(--series-1)" not in figure.svg and "var(--series-2)" in figure.svg


def test_the_figure_marks_line_exits_and_choice():
    svg = trade_off_figure("f", "GMACs", [(1.0, 0.5), (2.0, 0.6)], [(1.0, 0.5), (2.0, 0.6)], (1.5, 0.55))
    assert "var(--series-1)" in svg and "var(--series-2)" in svg and "var(--ink)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)


def test_the_gallery_goes_from_easy_to_hard(directory):
    shown = blocks(section(directory), Samples)
    assert [len(block.samples) for block in shown] == [4, 4, 4]
    assert "exit 1, easy ones" in shown[0].caption
    assert "exit 2, harder ones" in shown[1].caption
    assert "exit 3, the hardest ones" in shown[2].caption
    assert [sample.right for sample in shown[0].samples] == [True] * 4
    assert [sample.right for sample in shown[2].samples] == [True] * 3 + [False]


def test_an_exit_that_nobody_left_at_has_no_gallery(directory):
    found = json.loads((directory / CALIBRATION).read_text())["gallery"]
    shown = blocks(section(directory, gallery=[found[0], [], found[2]]), Samples)
    assert len(shown) == 2 and "exit 3" in shown[1].caption


def test_pictures_from_elsewhere_are_left_out(directory):
    found = json.loads((directory / CALIBRATION).read_text())["gallery"]
    found[0][0]["image"] = "https://elsewhere.example/a.png"
    assert len(blocks(section(directory, gallery=found), Samples)[0].samples) == 3
