"""The sections of a comparison, for our tasks and for others."""

import json

import pytest

from analysis.report.inside.made_up_inside import store_index
from analysis.report.made_up import ANGLE, HITS, make_comparison
from analysis.report.outline import blocks, captions
from dynavit.analysis.report import Figures, Notes, Section, Table, Text
from dynavit.analysis.report.read import read_comparison
from dynavit.analysis.report.sections.comparison import comparison_sections, difference_dots, example_run, result_dots

ANGLES = {"ln": [12.0, 13.0, 11.0], "dtn": [10.0, 10.0, 8.5]}


@pytest.fixture
def compared(tmp_path):
    return lambda accuracies=ANGLES, **options: read_comparison(make_comparison(tmp_path / "c", accuracies, **options))


def titled(comparison, of_task=()):
    return {section.title: section for section in comparison_sections(comparison, of_task) if section.blocks}


def painted(figure):
    """(label of the x axis, places of the large dots), as matplotlib is told."""
    from matplotlib.figure import Figure

    sheet = Figure()
    figure.paint(sheet)
    (axes,) = sheet.axes
    return axes.get_xlabel(), [line.get_xdata()[0] for line in axes.lines if line.get_markersize() == 5.5]


def test_the_order(compared):
    found = titled(compared(), [Section("Own", [Text("of the task")])])
    assert list(found) == ["What was run", "Results", "Training", "Cost", "Own", "λ per layer and head", "Notes"]


def test_dots_of_a_classification_are_percentages(compared):
    comparison = compared({"ln": [0.96, 0.97], "dtn": [0.98, 0.99]})
    figure = result_dots(comparison)
    assert figure.caption.endswith("small dots the single seeds. Further right is better.")
    label, values = painted(figure)
    assert label == "top-1 on the test split, %" and values == pytest.approx([96.5, 98.5])
    label, values = painted(difference_dots(comparison))
    assert label == "difference to ln, percentage points" and values == pytest.approx([2.0])


def test_dots_of_a_metric_that_is_smaller_for_better_models(compared):
    comparison = compared(metrics=[ANGLE, HITS])
    figure = result_dots(comparison)
    assert figure.label == "Angle error of each setting" and figure.caption.endswith("Further left is better.")
    label, values = painted(figure)
    assert label == "angle error on the test split, degrees" and values == pytest.approx([12.0, 9.5])
    label, values = painted(difference_dots(comparison))
    assert label == "difference to ln, degrees" and values == pytest.approx([-2.5])
    (table,) = blocks(titled(comparison)["Results"], Table)
    assert table.marked == {(1, 1)} and table.rows[1][1] == "9.5 ± 0.5"


def test_training_follows_the_direction(compared):
    angle, loss = captions(titled(compared(metrics=[ANGLE]))["Training"])
    assert "from the lowest to the highest seed. Lower is better; the steep" in angle and "Lower is better" in loss


def test_without_a_metric_there_is_the_loss_and_the_time(compared):
    found = titled(compared(metrics=[]))
    assert blocks(found["Results"], Figures) == []
    assert [figure.label for figure in blocks(found["Training"], Figures)[0].figures] == ["Validation loss over epochs"]
    assert captions(found["Training"])[0].endswith("highest seed. The steep beginning may be cut off.")
    assert blocks(found["Cost"], Table)


def test_the_speed_of_evaluation_has_a_column_if_it_was_measured(compared, tmp_path):
    header = ["norm", "step, ms", "step / ln", "quartiles"]
    (table,) = blocks(titled(compared(metrics=[ANGLE]))["Cost"], Table)
    assert table.header == header and len(table.notes) == 1
    measured = make_comparison(tmp_path / "measured", {"ln": [0.9, 0.8]})
    (table,) = blocks(titled(read_comparison(measured))["Cost"], Table)
    assert table.header == [*header, "evaluation with loading, images/s"]
    assert table.rows == [["ln", "12.3", "1.00×", "0.98–1.03", "5,120"]] and len(table.notes) == 2
    for number, file in enumerate(sorted(measured.glob("*/eval/test.json"))):
        speed = {"model_images_per_second": 100.0 + number, "images_per_second_with_loading": 29.0}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"throughput": speed}))
    (table,) = blocks(titled(read_comparison(measured))["Cost"], Table)
    assert table.header[-1] == "evaluation of the model, images/s" and table.rows[0][-1] == "100"


def test_without_validation_the_loss_of_training_is_shown(compared, tmp_path):
    compared(metrics=[])
    for file in tmp_path.glob("c/*/metrics.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if '"kind": "eval"' not in line))
    for directory in tmp_path.glob("c/*/eval"):
        (directory / "test.json").unlink()
        (directory.parent / "finished.json").write_text("{}")
    found = titled(read_comparison(tmp_path / "c"))
    assert [figure.label for figure in blocks(found["Training"], Figures)[0].figures] == ["Training loss over epochs"]
    assert not any("have finished" in note for block in blocks(found["Notes"], Notes) for note in block.notes)


def test_the_example_is_the_first_seed_of_the_best_setting(compared, tmp_path):
    assert example_run(compared(metrics=[ANGLE])).name == "dtn-seed0"
    larger = make_comparison(tmp_path / "larger", {"ln": [0.9, 0.8], "dtn": [0.8, 0.7]})
    assert example_run(read_comparison(larger)).name == "ln-seed0"
    without = make_comparison(tmp_path / "without", ANGLES, metrics=[], unfinished=frozenset({"ln-seed0"}))
    assert example_run(read_comparison(without)).name == "ln-seed1"
    nothing = make_comparison(tmp_path / "nothing", {"ln": [0.9]}, unfinished=frozenset({"ln-seed0"}))
    assert example_run(read_comparison(nothing)) is None


def test_captions_of_one_seed_speak_of_one_seed(compared):
    found = titled(compared({"ln": [0.96], "rms": [0.97]}))
    told = " ".join(caption for section in found.values() for caption in captions(section))
    assert "Each dot is a single seed." in told and "Each line is a single seed." in told
    assert "standard error" not in told and "95 %" not in told and "bands" not in told


def test_a_comparison_shows_its_inside_last(tmp_path):
    directory = make_comparison(tmp_path / "c", ANGLES)
    store_index(directory, ["mean_variation", "lambda"])
    found = titled(read_comparison(directory))
    assert list(found)[-3:] == ["What was probed", "mean_variation", "lambda"]
    labels = [figure.label for block in blocks(found["λ per layer and head"], Figures) for figure in block.figures]
    assert len(labels) == 2 and not any("over training" in label for label in labels)
