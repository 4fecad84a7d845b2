"""Early exit of a calibrated cascade."""

import json

import pytest

from analysis.report.inside.made_up_inside import store_index
from analysis.report.made_up import make_run
from analysis.report.outline import blocks, captions
from dynavit.analysis.report import Figures, Samples, Table, Text
from dynavit.analysis.report.read import read_run
from dynavit.analysis.report.sections.early_exit import sections

CALIBRATION = "analysis/calibration.json"


@pytest.fixture
def directory(tmp_path):
    return make_run(tmp_path / "cascade", exits=3)


def section(directory, **changes):
    found = json.loads((directory / CALIBRATION).read_text())
    (directory / CALIBRATION).write_text(json.dumps(found | changes))
    (only,) = sections(read_run(directory))
    return only


def test_a_run_without_thresholds_has_no_section(tmp_path):
    assert sections(read_run(make_run(tmp_path / "plain"))) == []


def test_calibration_is_no_evaluation(directory):
    assert list(read_run(directory).evaluations) == ["test"]


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
    assert figures.figures[0].caption.startswith("The line is early exit with other thresholds")
    assert figures.figures[1].caption.startswith("The same over measured time")


def test_without_other_thresholds_there_is_no_word_of_a_line(directory):
    for caption in captions(section(directory, curve=[], measured=[])):
        assert caption.startswith("Squares are single exits")


def test_the_gallery_goes_from_easy_to_hard(directory):
    shown = blocks(section(directory), Samples)
    assert [len(block.samples) for block in shown] == [4, 4, 4]
    assert "exit 1, easy ones" in shown[0].caption
    assert "exit 2, harder ones" in shown[1].caption
    assert "exit 3, the hardest ones" in shown[2].caption
    assert [sample.right for sample in shown[0].samples] == [True] * 4
    assert [sample.right for sample in shown[2].samples] == [True] * 3 + [False]


def test_an_exit_without_images_has_no_gallery(directory):
    found = json.loads((directory / CALIBRATION).read_text())["gallery"]
    shown = blocks(section(directory, gallery=[found[0], [], found[2]]), Samples)
    assert len(shown) == 2 and "exit 3" in shown[1].caption


def test_pictures_from_elsewhere_are_left_out(directory):
    found = json.loads((directory / CALIBRATION).read_text())["gallery"]
    found[0][0]["image"] = "https://elsewhere.example/a.png"
    assert len(blocks(section(directory, gallery=found), Samples)[0].samples) == 3


def test_images_that_the_analysis_shows_are_not_shown_twice(directory):
    assert len(blocks(section(directory), Samples)) == 3
    store_index(directory, ["exits"])
    assert blocks(section(directory), Samples) == []
