"""The sections of one run, for our tasks and for others."""

import json

import pytest

from analysis.report.inside.made_up_inside import store_index
from analysis.report.made_up import ANGLE, HITS, make_run
from analysis.report.outline import blocks, captions
from dynavit.analysis.report import Facts, Figures, Notes, Section, Table, Text
from dynavit.analysis.report.read import LOSS, read_run
from dynavit.analysis.report.sections.run import run_sections


@pytest.fixture
def sections(tmp_path):
    """By title; those without content are left out."""

    def make(of_task=(), **options):
        found = run_sections(read_run(make_run(tmp_path / "run", **options)), of_task)
        return {section.title: section for section in found if section.blocks}

    return make


def test_the_order(sections):
    found = sections([Section("Own", [Text("of the task")])], norm="dtn", notes=("a note",))
    assert list(found) == ["What was run", "Results", "Training", "Own", "λ per layer and head", "Notes"]


def test_results_of_a_classification(sections):
    (table,) = blocks(sections()["Results"], Table)
    metrics = ["top-1, %", "top-5, %", "loss", "calibration error, %"]
    assert table.header == ["evaluation", "data", "weights", "samples", *metrics, "images/s"]
    assert table.rows == [["test", "test split", "model", "360", "97.00", "99.80", "0.1100", "1.30", "5,120"]]


def test_results_are_the_metrics_of_the_task(sections):
    """A list among the results is a detail; a loss that is no metric of the task is not shown."""
    (table,) = blocks(sections(metrics=[ANGLE, HITS], top1=12.34)["Results"], Table)
    assert table.header == ["evaluation", "data", "weights", "samples", "angle error, degrees", "within 5°, %"]
    assert table.rows == [["test", "test split", "model", "360", "12.3", "87.50"]]


def test_evaluations_with_different_metrics_share_a_table(sections, tmp_path):
    directory = make_run(tmp_path / "both", metrics=[ANGLE], top1=12.0)
    stored = json.loads((directory / "eval/test.json").read_text())
    more = stored | {"metrics": [LOSS.to_dict()], "split": "val"}
    (directory / "eval/val.json").write_text(json.dumps(more))
    results = next(section for section in run_sections(read_run(directory)) if section.title == "Results")
    (table,) = blocks(results, Table)
    assert table.header[4:] == ["angle error, degrees", "loss"]
    assert [row[4:] for row in table.rows] == [["12.0", "0.2500"], ["12.0", "0.2500"]]


def test_a_run_without_metrics(sections):
    found = sections(metrics=[])
    assert list(found) == ["What was run", "Results", "Training"]
    (table,) = blocks(found["Results"], Table)
    assert table.rows == [["test", "test split", "model", "360"]]
    assert [figure.label for block in blocks(found["Training"], Figures) for figure in block.figures] == ["Loss over epochs"]


def test_training_shows_the_main_metric_with_its_direction(sections):
    assert captions(sections()["Training"])[0] == (
        "Top-1 on the validation split. Higher is better; the steep beginning may be cut off."
    )


def test_training_shows_a_metric_that_is_smaller_for_better_models(sections):
    angle, loss = captions(sections(metrics=[ANGLE])["Training"])
    assert angle == "Angle error on the validation split. Lower is better; the steep beginning may be cut off."
    assert loss.startswith("Loss. ")


def test_a_loss_that_is_the_main_metric_is_shown_once(sections):
    (caption,) = captions(sections(metrics=[LOSS])["Training"])
    assert caption.startswith("Loss. ")


def test_the_task_is_among_the_facts(sections):
    assert dict(blocks(sections(metrics=[ANGLE])["What was run"], Facts)[0].rows)["task"] == "rotation"


def test_a_note_is_told_once(sections):
    (notes,) = blocks(sections(notes=("fell back to eager", "fell back to eager"))["Notes"], Notes)
    assert notes.notes == ["fell back to eager"]


def labels(section):
    return [figure.label for block in blocks(section, Figures) for figure in block.figures]


def test_lambda_is_shown_at_the_end_and_over_training(sections):
    assert labels(sections(norm="dtn")["λ per layer and head"]) == [
        "λ of the mean per layer and head, run",
        "λ of the variance per layer and head, run",
        "λ of the mean over training, run",
        "λ of the variance over training, run",
    ]


def test_lambda_over_training_is_not_shown_twice(tmp_path):
    directory = make_run(tmp_path / "run", norm="dtn")
    store_index(directory, ["lambda"])
    found = {section.title: section for section in run_sections(read_run(directory))}
    assert all("per layer and head" in label for label in labels(found["λ per layer and head"]))
    assert list(found)[-2:] == ["What was probed", "lambda"]


def test_one_epoch_has_no_line(sections):
    assert len(labels(sections(norm="dtn", epochs=1)["λ per layer and head"])) == 2
