import json

import pytest

from analysis.report.made_up import lambdas, make_comparison, make_run
from dynavit.analysis.report.read import Comparison, Run, read_directory


def test_a_run(tmp_path):
    run = read_directory(make_run(tmp_path / "a", norm="dtn", seed=3, epochs=4, layers=2, heads=3))
    assert isinstance(run, Run)
    assert (run.name, run.seed, run.config["norm"], run.environment["device"]) == ("a", 3, "dtn", "cpu")
    assert list(run.curve("eval", "top1")) == list(run.curve("train", "loss")) == [1, 2, 3, 4]
    assert run.evaluations["test"]["samples"] == 360
    assert run.per_head("lambda_var")[-1] == (4, {layer: values["lambda_var"] for layer, values in lambdas(2, 3, 1).items()})


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
    assert (run.seed, run.metrics, run.evaluations, run.environment) == (1, [], {}, {})


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
    assert read_directory(tmp_path).split == "val"


def test_neither_run_nor_comparison(tmp_path):
    with pytest.raises(ValueError, match="neither a comparison .* nor a run"):
        read_directory(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such directory"):
        read_directory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("comparison.json", "{", r"comparison\.json: this is not the JSON"),
        ("comparison.json", "[]", "found a list"),
        ("comparison.json", "{}", "settings and varied missing"),
        ("config.yaml", "a: [", r"config\.yaml: this is not the YAML"),
        ("config.yaml", "- a", "found a list"),
        ("metrics.jsonl", "{}\nnonsense\n", r"metrics\.jsonl:2"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_directory(tmp_path)
