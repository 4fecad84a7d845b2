"""A run as the service sees it: facts about its exits, its curve, and the same in a bundle's manifest."""

import json
import shutil

import pytest
import torch

import dynavit
from dynavit import TrainConfig, train_run
from dynavit.bench.exits import exit_gmacs
from dynavit.data.config import AugmentConfig
from dynavit.deploy.serve.budget import Budget
from dynavit.runs.calibrate import Goal, calibrate_run, judge_run, read_policy
from dynavit.runs.directory import RunDirectory
from dynavit.runs.exit_facts import describe_calibration, describe_exits
from dynavit.runs.export import export_run
from dynavit.runs.served import open_served
from dynavit.runs.subject import Subject


@pytest.fixture(scope="module", autouse=True)
def instant():
    """Nothing is timed in tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dynavit.runs.calibrate.exit_milliseconds", lambda cascade, images: [1.0, 2.0])
        patch.setattr("dynavit.runs.calibrate.prediction_milliseconds", lambda *args: [1.0] * len(args[2]))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "cascade"
    config = TrainConfig(model="dvt_vit_digits", epochs=1, batch_size=64, lr=3e-3, augment=AugmentConfig(recipe="none"))
    config.model_options = {"depth": 1, "splits": [[[4, 4, 0]], [[2, 2, 0]]]}
    train_run(config, out)
    calibrate_run(out, Goal(gmacs=1e-4), device="cpu", batch_size=64)
    return out


def test_a_run_is_served(run):
    model, policy = open_served(run), read_policy(run)
    model.self_test()
    assert (model.name, len(model.classes), len(model.exits)) == ("dvt_vit_digits", 10, 2) and model.notes == []
    assert [exit.grid for exit in model.exits] == [(2, 2), (4, 4)]
    assert [exit.cumulative_gmacs for exit in model.exits] == pytest.approx(policy.gmacs)
    assert model.exits[0].gmacs + model.exits[1].gmacs == pytest.approx(model.exits[1].cumulative_gmacs)
    state = model.backend.model.step(model.backend.model.begin(torch.zeros(1, 1, 8, 8)))[1]
    parts = (state.images, state.features, state.relations)
    assert model.exits[0].state_bytes == sum(part.nbytes for part in parts) and model.exits[1].state_bytes == 0
    assert model.curve.calibrated and model.curve.monotone and len(model.curve.points) > 10
    default = model.curve.apply(Budget())
    assert default.thresholds == pytest.approx([max(threshold, 0.0) for threshold in policy.thresholds[:-1]])
    stored = json.loads(RunDirectory(run).calibration_file.read_text())
    assert (default.expected_gmacs, default.expected_accuracy) == (stored["gmacs"], stored["accuracy"])
    assert default.shares == tuple(stored["shares"])
    first, last = model.curve.apply(Budget(level=0)), model.curve.apply(Budget(level=1))
    assert (first.expected_gmacs, last.expected_gmacs) == pytest.approx(policy.gmacs)


def test_without_thresholds_the_last_exit_answers(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    RunDirectory(copy).policy_file.unlink()
    model = open_served(copy)
    assert not model.curve.calibrated and "not calibrated" in model.notes[0]
    assert model.curve.apply(Budget()).shares == (0.0, 1.0)


def test_other_weights_have_no_thresholds(run):
    """Those that were found are for the usual ones."""
    assert not open_served(run, checkpoint="best").curve.calibrated


def test_facts_for_a_manifest(run):
    model = dynavit.load(run)
    facts = describe_exits(model, (1, 8, 8))
    assert [exit["cumulative_gmacs"] for exit in facts] == exit_gmacs(model, torch.zeros(1, 1, 8, 8))
    calibration = describe_calibration(Subject.of(run))
    assert calibration["n"] == 360 and calibration["data"] == "digits test"
    assert all(sum(point["shares"]) == pytest.approx(1) for point in calibration["points"])
    assert describe_exits(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)), (1, 8, 8)) == [
        {"grid": None, "gmacs": 192e-9, "cumulative_gmacs": 192e-9, "state_bytes": 0}
    ]


def test_a_falling_curve_is_repaired_by_judging(run, tmp_path):
    """3.3 d: the running maximum from cheap to dear, evaluated anew. Served as it is, its point is left out."""
    copy = shutil.copytree(run, tmp_path / "copy")
    file = RunDirectory(copy).calibration_file
    stored = json.loads(file.read_text())
    at = next(at for at, point in enumerate(stored["curve"]) if at > 4 and point["thresholds"][0])
    stored["curve"][at]["thresholds"][0] = 0.01
    file.write_text(json.dumps(stored))
    assert "1 of" in open_served(copy).notes[0]
    judged = judge_run(copy, device="cpu", batch_size=64)["curve"]
    thresholds = [point["thresholds"][0] or 0.0 for point in judged]
    assert thresholds == sorted(thresholds) and thresholds[at] == thresholds[at - 1]
    assert judged[at]["accuracy"] == judged[at - 1]["accuracy"]
    assert open_served(copy).notes == []


@pytest.mark.slow
def test_a_bundle_says_the_same(run, tmp_path):
    out, _ = export_run(run, "onnx", tmp_path / "onnx")
    bundle, model = open_served(out), open_served(run)
    assert bundle.exits == model.exits and bundle.curve == model.curve and bundle.version == model.version
    bundle.self_test()
