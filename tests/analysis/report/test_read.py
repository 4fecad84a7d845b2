import json

import pytest

from analysis.report.made_up import ANGLE, HITS, lambdas, make_comparison, make_run
from dynavit.analysis.report.read import LEGACY_METRICS, LOSS, Comparison, Run, read_directory, read_run
from dynavit.common.thinned import MOST, Thinned


def test_a_run(tmp_path):
    run = read_directory(make_run(tmp_path / "a", norm="dtn", seed=3, epochs=4, layers=2, heads=3))
    assert isinstance(run, Run)
    assert (run.name, run.seed, run.config["norm"], run.environment["device"]) == ("a", 3, "dtn", "cpu")
    assert list(run.curve("eval", "top1")) == list(run.curve("train", "loss")) == [1, 2, 3, 4]
    assert run.evaluations["test"]["samples"] == 360
    assert run.per_head("lambda_var")[-1] == (4, {layer: values["lambda_var"] for layer, values in lambdas(2, 3, 1).items()})
    assert run.lambdas["variance"]["epochs"] == [1, 2, 3, 4]
    ends = {layer: values[-1] for layer, values in run.lambdas["variance"]["layers"].items()}
    assert ends == run.per_head("lambda_var")[-1][1]


def test_lambda_over_training_is_of_the_layers_at_the_end(tmp_path):
    """A layer that is logged later than the others would have gaps: the epochs begin where all are there."""
    logged = [{"a": [0.5]}, {"a": [0.6], "b": [0.1]}, {"a": [0.7], "b": [0.2]}]
    lines = [
        {"kind": "scalars", "epoch": epoch, "values": {layer: {"lambda_mean": heads} for layer, heads in layers.items()}}
        for epoch, layers in enumerate(logged)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = {"epochs": [1, 2], "layers": {"a": [[0.6], [0.7]], "b": [[0.1], [0.2]]}}
    assert read_directory(tmp_path).lambdas == {"mean": found, "variance": None}


def test_the_average_is_shown_where_one_was_kept(tmp_path):
    directory = make_run(tmp_path / "a", epochs=2)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "eval", "split": "val", "weights": "ema", "step": 20, "epoch": 2.0, "top1": 0.5}) + "\n")
    assert read_directory(directory).curve("eval", "top1") == {2.0: 0.5}


def test_numbers_that_were_not_finite_are_left_out(tmp_path):
    directory = tmp_path / "a"
    directory.mkdir()
    lines = [
        {"kind": "eval", "split": "val", "weights": "model", "epoch": 1.0, "loss": None},
        {"kind": "scalars", "epoch": 1.0, "values": {"a": {"lambda_mean": [0.5, None]}, "b": {"lambda_mean": [0.1, 0.2]}}},
        {"kind": "scalars", "epoch": 2.0, "values": {"a": {"other": [0.5]}}},
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_directory(directory)
    assert run.curve("eval", "loss") == {}
    assert run.per_head("lambda_mean") == [(1.0, {"b": [0.1, 0.2]})]


def test_a_run_that_has_only_begun(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    run = read_directory(tmp_path)
    assert (run.seed, run.log, run.evaluations, run.environment) == (1, [], {}, {})
    assert (run.split, run.final, run.main_metric, run.lambdas, run.finished) == ("", {}, None, {}, False)


# ---- Metrics


def test_an_evaluation_names_its_metrics_and_lists_are_details(tmp_path):
    listed = [ANGLE, HITS, LOSS]
    directory = make_run(tmp_path / "a", metrics=listed, top1=10.0)
    file = directory / "eval/test.json"
    stored = json.loads(file.read_text())
    more = [{"name": "by_quadrant", "label": "by quadrant"}, {**HITS.to_dict(), "name": "later", "of_a_later_version": 1}]
    file.write_text(json.dumps(stored | {"metrics": stored["metrics"] + more, "later": None}))
    run = read_directory(directory)
    assert run.metrics_of(run.final)[:3] == listed
    assert [metric.name for metric in run.metrics_of(run.final)[3:]] == ["later"]
    assert run.main_metric == ANGLE


def test_runs_from_before_metrics_were_stored_are_classifications(tmp_path):
    run = read_directory(make_run(tmp_path / "a"))
    assert run.metrics_of(run.final) == list(LEGACY_METRICS)
    assert [metric.name for metric in run.metrics_of({"loss": 1.0, "top1": 0.5})] == ["top1", "loss"]
    assert run.main_metric.name == "top1"
    unfinished = read_directory(make_run(tmp_path / "b", finished=False))
    assert unfinished.main_metric.name == "top1", "from its log"


def test_a_task_may_name_no_metric(tmp_path):
    run = read_directory(make_run(tmp_path / "a", metrics=[]))
    assert run.metrics_of(run.final) == [] and run.main_metric is None
    assert read_directory(make_run(tmp_path / "b", metrics=[ANGLE], finished=False)).main_metric is None, "not told yet"


def test_a_comparison_is_about_the_metric_of_its_runs(tmp_path):
    angles = {"ln": [10.0, 11.0], "dtn": [9.0, 9.5]}
    first = frozenset({"ln-seed0"})
    found = read_directory(make_comparison(tmp_path / "a", angles, metrics=[ANGLE, HITS], unfinished=first))
    assert found.main_metric == found.shown_metric == ANGLE
    assert [found.results(setting) for setting in found.settings] == [{1: 11.0}, {0: 9.0, 1: 9.5}]
    without = read_directory(make_comparison(tmp_path / "b", angles, metrics=[]))
    assert without.main_metric is None and without.shown_metric == LOSS
    assert without.results(without.settings[0]) == {0: 0.25, 1: 0.25}


def test_a_run_without_anything_to_evaluate_on_has_finished_too(tmp_path):
    directory = make_run(tmp_path / "a", finished=False)
    assert not read_directory(directory).finished
    (directory / "finished.json").write_text("{}")
    assert read_directory(directory).finished


def test_a_line_that_is_still_being_written_is_not_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "note", "text": "a"}\n{"kind": "no')
    assert [line["text"] for line in read_directory(tmp_path).lines("note")] == ["a"]


def test_a_comparison(tmp_path):
    found = read_directory(make_comparison(tmp_path, unfinished=frozenset({"bn-seed2"})))
    assert isinstance(found, Comparison)
    assert found.baseline is found.settings[0] and found.baseline.name == "ln"
    bn = found.settings[1]
    assert (len(bn.runs), bn.planned, list(bn.results("test", "top1"))) == (3, 3, [0, 1])
    assert bn.cost["parameters"] == 308_946
    assert found.split == "test"


def test_runs_that_have_not_begun_and_missing_parts(tmp_path):
    text = {"varied": ["norm"], "settings": [{"name": "ln", "values": {"norm": "ln"}, "runs": ["ln-seed0", "ln-seed1"]}]}
    (tmp_path / "comparison.json").write_text(json.dumps(text))
    found = read_directory(tmp_path)
    assert (found.title, found.baseline, found.settings[0].runs, found.settings[0].planned) == (tmp_path.name, None, [], 2)


def test_validation_results_stand_in_until_there_is_a_test(tmp_path):
    make_comparison(tmp_path)
    for file in tmp_path.glob("*/eval/test.json"):
        file.rename(file.with_name("val.json"))
    found = read_directory(tmp_path)
    assert found.split == found.runs[0].split == "val"


def test_other_splits_stand_in_where_there_is_neither(tmp_path):
    found = read_directory(make_comparison(tmp_path, {"ln": [0.9]}, split="sketches"))
    assert found.split == found.runs[0].split == "sketches"


def test_neither_run_nor_comparison(tmp_path):
    with pytest.raises(ValueError, match="neither a comparison .* nor a run"):
        read_directory(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such directory"):
        read_directory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("comparison.json", "{", r"comparison\.json is damaged"),
        ("comparison.json", "[]", r"comparison\.json is damaged, .*: \[\]: names and values"),
        ("comparison.json", "{}", "settings is missing"),
        ("config.yaml", "a: [", r"config\.yaml: this is not the YAML"),
        ("config.yaml", "- a", "found a list"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_directory(tmp_path)


def test_damaged_lines_are_numbered_and_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "eval"}\nnonsense\n{"kind": "train"}\n{"ki')
    *lines, note = read_directory(tmp_path).log
    assert [line["kind"] for line in lines] == ["eval", "train"]
    assert note == {"kind": "note", "text": "damaged lines of metrics.jsonl are left out, 1 in all: number 2"}


def test_a_long_log_is_thinned_while_it_is_read(tmp_path, monkeypatch):
    """Of 10,000 lines no more than a curve needs are ever held; ends and rare lines stay."""
    lines = [{"kind": "train", "epoch": step / 100, "loss": step} for step in range(10_000)]
    lines[500:500] = [
        {"kind": "note", "text": "rare"},
        {"kind": "eval", "split": "val", "weights": "model", "epoch": 5, "top1": 1},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    held, add = [], Thinned.add
    monkeypatch.setattr(Thinned, "add", lambda self, line: add(self, line) or held.append(len(self.kept)))
    run = read_run(tmp_path)
    curve = run.curve("train", "loss")
    assert max(held) <= MOST and len(held) == len(lines)
    assert MOST / 2 <= len(curve) <= MOST + 1
    assert (min(curve.items()), max(curve.items())) == ((0.0, 0), (99.99, 9999))
    assert [line["text"] for line in run.lines("note")] == ["rare"] and run.curve("eval", "top1") == {5: 1}
