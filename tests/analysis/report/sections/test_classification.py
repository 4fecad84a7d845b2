"""Confusion and samples of a classification."""

import json

import pytest

from analysis.report.made_up import make_run
from analysis.report.outline import blocks, captions
from dynavit.analysis.report import Figures, Samples, Table, Text
from dynavit.analysis.report.read import read_run
from dynavit.analysis.report.sections.classification import sections


@pytest.fixture
def section(tmp_path):
    def make(**options):
        (found,) = sections(read_run(make_run(tmp_path / "run", **options)))
        return found

    return make


def test_confusion_and_samples(section):
    found = section()
    (caption,) = captions(found)
    assert caption.startswith("run on the test split: rows are the true classes, columns the predicted ones")
    (shown,) = blocks(found, Samples)
    assert [sample.right for sample in shown.samples].count(False) == 2 and len(shown.samples) == 12
    assert shown.samples[4].prediction == "7" and shown.samples[4].target == "4"
    assert "calibration error" in blocks(found, Text)[0].text


def test_they_are_of_the_final_evaluation(section):
    assert captions(section(split="val"))[0].startswith("run on the validation split: ")


def test_many_classes_give_a_table_of_mistakes(section):
    found = section(classes=[f"class {i}" for i in range(100)])
    assert blocks(found, Figures) == []
    (table,) = blocks(found, Table)
    assert table.header == ["true class", "predicted", "images", "of its class, %"]
    assert len(table.rows) == 15 and ["class 1", "class 4", "2", "5.56"] in table.rows


def test_pictures_from_elsewhere_are_left_out(tmp_path):
    directory = make_run(tmp_path / "run")
    found = json.loads((directory / "eval/test.json").read_text())
    found["samples_shown"][0]["image"] = "https://elsewhere.example/a.png"
    (directory / "eval/test.json").write_text(json.dumps(found))
    (section,) = sections(read_run(directory))
    assert len(blocks(section, Samples)[0].samples) == 11


@pytest.mark.parametrize("options", [{"finished": False}, {"metrics": []}])
def test_without_details_it_is_empty(section, options):
    assert section(**options).blocks == []
