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
    assert table.header == ["evaluation", "data", "weights", "samples", *metrics, "with loading, images/s"]
    assert table.rows == [["test", "test split", "model", "360", "97.00", "99.80", "0.1100", "1.30", "5,120"]]


def test_the_speed_of_the_model_stands_apart_from_that_with_loading(tmp_path):
    directory = make_run(tmp_path / "run")
    stored = json.loads((directory / "eval/test.json").read_text())
    speed = {"batch_size": 8, "model_images_per_second": 209.0, "images_per_second_with_loading": 29.0}
    (directory / "eval/val.json").write_text(json.dumps(stored | {"split": "val", "throughput": speed}))
    results = next(section for section in run_sections(read_run(directory)) if section.title == "Results")
    (table,) = blocks(results, Table)
    assert table.header[-2:] == ["model, images/s", "with loading, images/s"]
    assert [row[-2:] for row in table.rows] == [["–", "5,120"], ["209", "29"]]


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


def lines_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def drawn(directory, lines):
    """(label of the y axis, values of each line) of the figures about training, when these lines were logged."""
    from matplotlib.figure import Figure

    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for figure in blocks(run_sections(read_run(directory))[2], Figures)[0].figures:
        figure.paint(sheet := Figure())
        (axes,) = sheet.axes
        yield axes.get_ylabel(), [list(line.get_ydata()) for line in axes.lines]


def test_training_accuracy_stands_beside_validation_accuracy(tmp_path):
    directory = make_run(tmp_path / "run")
    lines = [line | {"top1": 0.5} if line["kind"] == "train" else line for line in lines_of(directory)]
    (label, (validation, training)), _ = drawn(directory, lines)
    assert label == "top-1, %" and len(validation) == len(training) and set(training) == {50.0}


def test_the_loss_of_a_cascade_is_that_of_its_last_exit_in_training_as_in_validation(tmp_path):
    """Its training loss is the sum over all exits, and does not belong on the axis of a single one."""
    directory = make_run(tmp_path / "run")
    lines = lines_of(directory)
    for line in lines:
        if line["kind"] == "train":
            line |= {f"loss_exit{k}": 0.1 * k for k in range(1, 12)} | {"loss": 6.6}
    _, (label, (_, training)) = drawn(directory, lines)
    assert label == "loss of the last exit" and training == pytest.approx([1.1] * len(training))


@pytest.mark.parametrize(
    ("environment", "task", "norm"),
    [({"task": "early_exit", "norms": "ln"}, "early_exit", "ln"), ({}, "that of the model", "the model's own")],
)
def test_options_that_were_left_open_are_what_followed(tmp_path, environment, task, norm):
    """A model with LayerNorm read "norm none"."""
    run = read_run(make_run(tmp_path / "run"))
    run.config.update(task=None, norm=None)
    run.environment.update(environment)
    rows = dict(blocks(run_sections(run)[0], Facts)[0].rows)
    assert (rows["task"], rows["norm"]) == (task, norm)


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
