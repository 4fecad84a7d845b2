"""`dynavit calibrate`, and what `eval`, `predict` and `report` make of a cascade."""

import json
import shutil

import pytest
import torch
from PIL import Image

import dynavit
from dynavit.cli.main import main
from dynavit.data.config import DataConfig
from dynavit.data.digits import open_digits
from dynavit.models.cascade.policy import ExitPolicy
from dynavit.runs.calibrate import read_policy

pytestmark = pytest.mark.usefixtures("costs_in_few_rounds", "nothing_is_drawn_in_this_file")

SPLITS = "[[[5,8,0]],[[8,8,0]]]"  # the first exit sees only a corner, so the second is better


@pytest.fixture(scope="module")
def cascade(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "cascade"
    words = [
        "--model",
        "dvt_vit_digits",
        "--model_options.depth",
        "1",
        "--model_options.splits",
        SPLITS,
        "--augment.recipe",
        "none",
    ]
    assert main(["train", *words, "--epochs", "2", "--batch-size", "32", "--lr", "3e-3", "--quiet", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def calibrated(cascade, tmp_path_factory):
    out = shutil.copytree(cascade, tmp_path_factory.mktemp("runs") / "calibrated")
    assert main(["calibrate", str(out), "--gmacs", "6.2e-5", "--device", "cpu"]) == 0
    return out


@pytest.fixture
def copy(calibrated, tmp_path):
    return shutil.copytree(calibrated, tmp_path / "copy")


def rows(told):
    return [line.split() for line in told.splitlines()]


def test_search_prints_what_it_stores(run, copy):
    code, told, _ = run("calibrate", copy, "--accuracy", "0.85", "--batch-size", "32")
    assert code == 0
    policy, result = read_policy(copy), json.loads((copy / "analysis" / "calibration.json").read_text())
    assert "thresholds for at least 85.00% accuracy, found on 144 images (val of digits, seed 0)" in told
    assert ["1", f"{policy.thresholds[0]:.4f}", f"{policy.shares[0]:.1%}"] in rows(told)
    assert ["2", "all", f"{policy.shares[1]:.1%}"] in rows(told)
    assert "test of digits, 360 images, early exit executed" in told and "ms at batch 32" in told
    early = ["early", "exit", f"{result['accuracy']:.2%}", f"{result['gmacs']:.4g}", f"{result['milliseconds']:.4g}"]
    assert early in rows(told)
    assert told.endswith(f"report: {copy / 'report.html'}\n")
    assert "Early exit</h2>" in (copy / "report.html").read_text()


def test_stored_thresholds_on_another_split(run, copy):
    before = (copy / "policy.json").read_text()
    code, told, _ = run("calibrate", "judge", copy, "--split", "val")
    assert code == 0
    assert "val of digits, 144 images, early exit executed" in told
    assert (copy / "policy.json").read_text() == before


def test_stored_results_are_printed_without_running_anything(run, copy):
    shutil.rmtree(copy / "checkpoints")
    code, told, _ = run("calibrate", "show", copy)
    assert code == 0
    assert "thresholds for at most 6.2e-05 GMACs per image" in told
    assert "test of digits, 360 images, early exit executed" in told


def test_stored_results_of_a_released_file(run, tmp_path, monkeypatch):
    from dynavit.runs import model_files

    numbers = {
        "flops": [0.5, 1.5],
        "anytime_classification": [70.3, 79.6],
        "dynamic_threshold": [[0.25, -1e8], [1e8, -1e8]],
        "budgeted_batch_classification": [[0.75, 1.5], [75.5, 79.6]],
    }
    model = torch.nn.Module()
    model.released = numbers
    monkeypatch.setattr(model_files, "load_released", lambda path: model)
    file = tmp_path / "released.pth.tar"
    file.touch()
    code, told, _ = run("calibrate", "show", file)
    assert code == 0
    assert ["2", "1.5", "79.60"] in rows(told)
    assert ["1", "0.75", "75.50", "0.2500,", "all"] in rows(told)
    assert ["2", "1.5", "79.60", "none,", "all"] in rows(told)
    del numbers["flops"]
    assert run("calibrate", "show", file)[0] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one goal: gmacs, milliseconds, accuracy or p; got none"),
        (["--gmacs", "1", "--p", "20"], "got gmacs and p"),
        (["--gmacs", "1e-9"], "no thresholds cost at most 1e-09 per image"),
        (["--p", "0"], "p goes from 1 to 59"),
        (["--p", "20", "--judge", "tset"], "digits has no split 'tset'"),
    ],
)
def test_mistakes(run, cascade, words, message):
    code, told, problem = run("calibrate", cascade, *words)
    assert (code, told) == (2, "")
    assert message in problem.splitlines()[-1]
    assert not (cascade / "policy.json").exists()


def test_thresholds_that_are_not_there(run, cascade):
    assert "has no policy.json; find thresholds with `dynavit calibrate" in run("calibrate", "show", cascade)[2]
    assert "has no policy.json" in run("calibrate", "judge", cascade)[2]
    assert "unknown option 'p'" in run("calibrate", "judge", cascade, "--p", "20")[2]
    assert "calibrate search" in run("calibrate")[1], "explains itself"


def test_a_model_without_exits_is_refused(run, trained):
    code, _, problem = run("calibrate", trained, "--p", "20")
    assert code == 2
    assert "has no exits; thresholds are for cascades" in problem


# ---- eval, predict, train


def test_eval_names_every_exit(run, copy):
    code, told, _ = run("eval", copy)
    assert code == 0
    found = json.loads((copy / "eval" / "test.json").read_text())
    assert found["top1"] == found["exit2_top1"] != found["exit1_top1"]
    assert ["exit", "1,", "top-1", f"{found['exit1_top1']:.2%}"] in rows(told)
    assert ["exit", "2,", "top-1", f"{found['exit2_top1']:.2%}"] in rows(told)


def test_a_finished_run_can_be_asked_to_go_on_after_calibration(run, copy):
    code, told, _ = run("train", "--resume", "--out", copy, "--quiet")
    assert code == 0
    assert "test: top-1" in told


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    split = open_digits(None, DataConfig()).splits["test"]
    for number in range(8):
        Image.fromarray(split.images[number, 0].numpy()).save(folder / f"{number}.png")
    return folder


def logits_of(run, count):
    data = open_digits(None, DataConfig())
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    with torch.no_grad():
        return torch.stack(dynavit.load(run)((data.splits["test"].images[:count] / 255 - mean) / std))


def test_predict_leaves_where_the_stored_thresholds_say(run, copy, pictures):
    code, told, _ = run("predict", copy, pictures, "--json")
    assert code == 0
    logits, policy = logits_of(copy, 8), read_policy(copy)
    exits = [1 if policy.leaves(logits[0], 0)[i] else 2 for i in range(8)]
    assert set(exits) == {1, 2}, "this test needs images at both exits"
    answers = json.loads(told)
    assert [answer["exit"] for answer in answers] == exits
    for i, answer in enumerate(answers):
        probabilities = logits[exits[i] - 1, i].softmax(-1)
        assert answer["label"] == str(probabilities.argmax().item())
        assert answer["confidence"] == pytest.approx(probabilities.max().item(), abs=1e-5)
    _, told, _ = run("predict", copy, pictures / "0.png", "--top", "1")
    assert told.endswith(f" (left at exit {exits[0]})\n")


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, [8, 0]), (2.0, [8, 8])])
def test_predict_runs_no_exit_in_vain(run, copy, pictures, monkeypatch, threshold, expected):
    from dynavit.models.cascade.exit import Exit

    (copy / "policy.json").write_text(ExitPolicy((threshold, -1)).to_json())
    calls, forward = [], Exit.forward
    monkeypatch.setattr(Exit, "forward", lambda self, *words, **more: calls.append(self) or forward(self, *words, **more))
    assert run("predict", copy, pictures)[0] == 0
    first = [exit.upsample is None for exit in calls]
    assert [first.count(True), first.count(False)] == expected


def test_predict_without_thresholds_asks_the_last_exit(run, cascade, copy, pictures):
    for directory, checkpoint in ((cascade, "last"), (copy, "best")):  # thresholds belong to the last checkpoint
        code, told, _ = run("predict", directory, pictures, "--json", "--checkpoint", checkpoint)
        assert code == 0
        assert not any("exit" in answer for answer in json.loads(told))
    _, told, _ = run("predict", cascade, pictures, "--json")
    assert [answer["label"] for answer in json.loads(told)] == [str(i) for i in logits_of(cascade, 8)[1].argmax(-1).tolist()]
