"""Thresholds of a trained run: found on one split, judged on another, and what is stored."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

import dynavit
from dynavit import TrainConfig, train_run
from dynavit.data.config import AugmentConfig, DataConfig
from dynavit.data.digits import open_digits
from dynavit.models.cascade.calibration import simulate
from dynavit.models.cascade.policy import ExitPolicy, confidence
from dynavit.runs.calibrate import Exits, Goal, calibrate_run, judge_run, read_calibration, read_policy
from dynavit.runs.directory import RunDirectory
from dynavit.runs.subject import Subject
from dynavit.tasks.early_exit import EarlyExit

pytestmark = pytest.mark.usefixtures("nothing_is_drawn_in_this_file")

BUDGET = 6.2e-5  # GMACs: half-way between the two exits
CPU = {"device": "cpu", "batch_size": 32}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A cascade in a second: the first exit sees only a corner of the image, so the second one is better."""
    out = tmp_path_factory.mktemp("runs") / "cascade"
    config = TrainConfig(model="dvt_vit_digits", epochs=2, batch_size=32, lr=3e-3, augment=AugmentConfig(recipe="none"))
    config.model_options = {"depth": 1, "splits": [[[5, 8, 0]], [[8, 8, 0]]]}
    train_run(config, out)
    return out


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


@pytest.fixture(autouse=True)
def instant(monkeypatch):
    """Nothing is timed in tests: every exit takes a millisecond, and early exit as long as its images take, and half more."""

    def milliseconds(cascade, images, policies, batch_size):
        return [1.5 * (1 + cascade.predict(images, policy).exit.double().mean().item()) for policy in policies]

    monkeypatch.setattr("dynavit.runs.calibrate.exit_milliseconds", lambda cascade, images: [1.0, 2.0])
    monkeypatch.setattr("dynavit.runs.calibrate.prediction_milliseconds", milliseconds)


def answers(run, split):
    """Of a split, without our loaders: conf (exits, n), correct (exits, n), labels (exits, n)."""
    data = open_digits(None, DataConfig())
    images, targets = data.splits[split].images, data.splits[split].labels
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    with torch.no_grad():
        logits = torch.stack(dynavit.load(run)((images / 255 - mean) / std))
    return confidence(logits), logits.argmax(-1) == targets, logits.argmax(-1)


def selected(run, split, thresholds):
    """Run everything, select afterwards: the exit of each image, and whether its answer there was right."""
    conf, correct, _ = answers(run, split)
    leaves = conf >= torch.tensor(thresholds)[:, None]
    exit = leaves.int().argmax(0)
    return exit, correct.gather(0, exit[None])[0]


# ------------------------------------------------------------------------------------------------------- what is found


def test_results_are_those_of_running_everything_and_selecting_afterwards(copy):
    result = calibrate_run(copy, Goal(gmacs=BUDGET), **CPU)
    policy = read_policy(copy)
    exit, right = selected(copy, "test", policy.thresholds)
    assert result["samples"] == 360
    assert result["accuracy"] == pytest.approx(right.double().mean().item(), abs=1e-12)
    shares = [(exit == at).double().mean().item() for at in range(2)]
    assert 0.05 < shares[0] < 0.95, "this test needs images at both exits"
    assert result["shares"] == pytest.approx(shares)
    assert result["gmacs"] == pytest.approx(np.dot(shares, policy.gmacs))
    assert result["anytime"] == pytest.approx(answers(copy, "test")[1].double().mean(1).tolist())

    exit, right = selected(copy, "val", policy.thresholds)
    assert policy.expected_accuracy == pytest.approx(right.double().mean().item(), abs=1e-12)
    assert policy.shares == pytest.approx([(exit == at).double().mean().item() for at in range(2)])
    assert policy.expected_gmacs() <= BUDGET
    assert policy.accuracy == pytest.approx(answers(copy, "val")[1].double().mean(1).tolist())


def test_thresholds_are_found_before_the_other_split_is_opened(copy, monkeypatch):
    touched = []
    batches = Exits.batches

    def watched(self, split, size):
        touched.append((split, RunDirectory(copy).policy_file.exists()))
        return batches(self, split, size)

    monkeypatch.setattr(Exits, "batches", watched)
    calibrate_run(copy, Goal(accuracy=0.85), **CPU)
    found = {split for split, stored in touched if not stored}
    judged = {split for split, stored in touched if stored}
    assert found == {"val"}
    assert judged == {"test"}


def test_images_are_never_augmented(copy, monkeypatch):
    asked = []
    loader = EarlyExit.loader
    monkeypatch.setattr(EarlyExit, "loader", lambda task, data, split, how: asked.append(how) or loader(task, data, split, how))
    calibrate_run(copy, Goal(p=20), **CPU)
    assert asked and not any(how.train for how in asked)


@pytest.mark.parametrize(
    ("goal", "check"),
    [
        (Goal(gmacs=BUDGET), lambda policy: policy.expected_gmacs() <= BUDGET),
        (Goal(milliseconds=2.0), lambda policy: 0.2 < policy.shares[1] < 0.4),
        (Goal(accuracy=0.85), lambda policy: policy.expected_accuracy >= 0.85 and policy.shares[0] > 0.3),
        (Goal(p=20), lambda policy: policy.shares[0] == pytest.approx(0.5, abs=0.02)),
        (Goal(p=1), lambda policy: policy.shares[0] > 0.9),
    ],
    ids=["gmacs", "milliseconds", "accuracy", "p=20", "p=1"],
)
def test_goals_are_met_on_the_images_they_were_found_on(copy, goal, check):
    calibrate_run(copy, goal, **CPU)
    policy = read_policy(copy)
    assert check(policy)
    assert policy.found_by == str(goal)
    assert (policy.found_on.data, policy.found_on.split, policy.found_on.seed, policy.found_on.samples) == (
        "digits",
        "val",
        0,
        144,
    )


def test_budgets_of_time_are_those_of_early_exit_not_the_sum_of_the_exits(copy):
    """By the exits' own times 1.45 ms would let 45 % go on; early exit takes half more here, so nobody can."""
    with pytest.raises(ValueError, match="no thresholds cost at most 1.45 per image: the least possible is 1.5"):
        calibrate_run(copy, Goal(milliseconds=1.45), **CPU)


@pytest.mark.parametrize("kind", ["margin", "entropy"])
def test_other_confidences(copy, kind):
    result = calibrate_run(copy, Goal(gmacs=BUDGET), confidence=kind, **CPU)
    assert read_policy(copy).confidence_kind == kind
    assert 0.05 < result["shares"][0] < 0.95


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 50, 360])
def test_predicting_agrees_at_any_batch_size_with_what_was_found(copy, batch_size):
    result = calibrate_run(copy, Goal(gmacs=BUDGET), split="test", batch_size=batch_size, device="cpu")
    policy = read_policy(copy)
    assert result["shares"] == pytest.approx(policy.shares, abs=1e-12)
    assert result["accuracy"] == pytest.approx(policy.expected_accuracy, abs=1e-12)
    assert 0.05 < result["shares"][0] < 0.95


# ------------------------------------------------------------------------------------------------------ what is stored


def test_the_curve_is_judged_on_the_split_that_judges(copy):
    result = calibrate_run(copy, Goal(gmacs=BUDGET), **CPU)
    curve = result["curve"]
    assert len(curve) == 60
    for point in (curve[0], curve[30], curve[-1]):
        thresholds = [-math.inf if t is None else t for t in point["thresholds"]]
        exit, right = selected(copy, "test", thresholds)
        assert point["accuracy"] == pytest.approx(right.double().mean().item(), abs=1e-12)
        costs = torch.tensor(result["policy"]["gmacs"], dtype=torch.float64)
        assert point["gmacs"] == pytest.approx(costs[exit].mean().item())
    assert curve[0]["gmacs"] == result["policy"]["gmacs"][0]
    assert curve[-1]["gmacs"] == result["policy"]["gmacs"][1]
    assert [point["thresholds"] for point in result["measured"]][:: len(result["measured"]) - 1] == [
        curve[0]["thresholds"],
        curve[-1]["thresholds"],
    ]
    assert result["measured"][0]["milliseconds"] == 1.5


def test_the_gallery_holds_images_where_they_left(copy):
    result = calibrate_run(copy, Goal(gmacs=BUDGET), **CPU)
    exit, right = selected(copy, "test", read_policy(copy).thresholds)
    targets = open_digits(None, DataConfig()).splits["test"].labels
    for at, images in enumerate(result["gallery"]):
        assert [image["index"] for image in images] == (exit == at).nonzero().flatten().tolist()[:12]
        for image in images:
            assert image["target"] == targets[image["index"]]
            assert (image["target"] == image["prediction"]) == right[image["index"]]
            assert image["image"].startswith("data:image/png;base64,")


def test_of_a_large_split_evenly_many_images_are_measured_and_shown(copy, monkeypatch):
    monkeypatch.setattr("dynavit.runs.calibrate.MEASURED_IMAGES", 100)
    monkeypatch.setattr("dynavit.runs.calibrate.LOOK_BATCH", 7)
    seen = Exits.open(Subject(run=copy, device="cpu"), ("test",)).look_at("test", "max_softmax")
    data = open_digits(None, DataConfig())
    wanted = data.splits["test"].images[::4, 0] / 255
    assert torch.allclose(seen.images[:, 0] * data.std[0] + data.mean[0], wanted, atol=1e-6)
    result = calibrate_run(copy, Goal(gmacs=BUDGET), **CPU)
    exit, right = selected(copy, "test", read_policy(copy).thresholds)
    for at, images in enumerate(result["gallery"]):
        shown = [i for i in range(0, 360, 4) if exit[i] == at][:12]
        assert [image["index"] for image in images] == shown
        assert [image["target"] for image in images] == data.splits["test"].labels[shown].tolist()
        assert [image["target"] == image["prediction"] for image in images] == right[shown].tolist()


def test_files_hold_what_was_returned(copy):
    result = calibrate_run(copy, Goal(accuracy=0.85), **CPU)
    assert json.loads(RunDirectory(copy).calibration_file.read_text()) == result == read_calibration(copy)
    policy = read_policy(copy)
    assert ExitPolicy.from_json(policy.to_json()) == policy
    assert ExitPolicy.from_json(json.dumps(result["policy"])) == policy
    assert (policy.batch_size, policy.milliseconds) == (32, (1.0, 2.0))


# ------------------------------------------------------------------------------------------------ with stored thresholds


def test_stored_thresholds_are_judged_on_another_split_with_their_curve(copy):
    first = calibrate_run(copy, Goal(gmacs=BUDGET), **CPU)
    before = RunDirectory(copy).policy_file.read_text()
    second = judge_run(copy, judge="train", batch_size=16, device="cpu")
    assert RunDirectory(copy).policy_file.read_text() == before
    assert (second["split"], second["samples"]) == ("train", 1293)
    _, right = selected(copy, "train", read_policy(copy).thresholds)
    assert second["accuracy"] == pytest.approx(right.double().mean().item(), abs=1e-12)
    assert [point["thresholds"] for point in second["curve"]] == [point["thresholds"] for point in first["curve"]]
    conf, correct, _ = answers(copy, "train")
    rows = [[-math.inf if t is None else t for t in point["thresholds"]] for point in second["curve"]]
    expected = simulate(conf.numpy(), correct.numpy(), second["policy"]["gmacs"], rows)
    assert [point["accuracy"] for point in second["curve"]] == pytest.approx(expected.accuracy.tolist())
    assert second["policy"]["batch_size"] == 16
    again = judge_run(copy, **CPU)
    assert again["shares"] == first["shares"] and again["curve"] == first["curve"]


def test_a_policy_by_hand_needs_nothing_but_thresholds(copy):
    RunDirectory(copy).policy_file.write_text(ExitPolicy((0.3, -1)).to_json())
    result = judge_run(copy, **CPU)
    assert result["curve"] == result["measured"] == []
    assert result["shares"][0] == (answers(copy, "test")[0][0] >= 0.3).double().mean().item()
    assert result["gmacs"] > 0


def test_a_curve_of_another_confidence_is_not_taken(copy):
    calibrate_run(copy, Goal(gmacs=BUDGET), **CPU)
    RunDirectory(copy).policy_file.write_text(ExitPolicy((0.3, -1), "margin").to_json())
    assert judge_run(copy, **CPU)["curve"] == []


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "one goal: gmacs, milliseconds, accuracy or p; got none"),
        ({"gmacs": 1.0, "p": 3}, "one goal: gmacs, milliseconds, accuracy or p; got gmacs and p"),
        ({"p": 60}, "p goes from 1 to 59, got 60"),
        ({"accuracy": 95}, "accuracy is a fraction from 0 to 1, such as 0.9; got 95"),
    ],
)
def test_goals_that_make_no_sense(goal, message):
    with pytest.raises(ValueError, match=message):
        Goal(**goal)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (Goal(gmacs=1e-6), "no thresholds cost at most 1e-06 per image: the least possible is "),
        (Goal(accuracy=1), "no thresholds reach an accuracy of 1 on these images: the best is "),
    ],
)
def test_what_cannot_be_reached_is_said_and_nothing_is_stored(copy, goal, message):
    with pytest.raises(ValueError, match=message):
        calibrate_run(copy, goal, **CPU)
    assert not RunDirectory(copy).policy_file.exists() and not RunDirectory(copy).calibration_file.exists()


def test_splits_that_are_not_there_are_noticed_first(run, monkeypatch):
    monkeypatch.setattr(Exits, "look_at", None)
    for splits in ({"split": "vla"}, {"judge": "vla"}):
        with pytest.raises(ValueError, match="digits has no split 'vla'; it has train, test, val"):
            calibrate_run(run, Goal(p=20), **splits, **CPU)


def test_a_model_without_exits(tmp_path):
    train_run(TrainConfig(epochs=0.1, model_options={"depth": 1, "norm_blocks": 1}), tmp_path / "x")
    with pytest.raises(ValueError, match="which has no exits; thresholds are for cascades"):
        calibrate_run(tmp_path / "x", Goal(p=20), **CPU)


def test_data_with_other_classes(run, tmp_path):
    from data.image_files import write_folder

    write_folder(tmp_path, {"val": {"cat": 1, "dog": 1}})
    with pytest.raises(ValueError, match="folder has 2 classes, the model of .* tells 10 apart"):
        calibrate_run(run, Goal(p=20), data="folder", data_dir=tmp_path, judge="val", **CPU)


def test_policies_that_are_missing_broken_or_of_another_cascade(copy):
    with pytest.raises(ValueError, match="has no policy.json; find thresholds with `dynavit calibrate "):
        judge_run(copy)
    RunDirectory(copy).policy_file.write_text("{")
    with pytest.raises(ValueError, match="policy.json: not an exit policy"):
        judge_run(copy)
    RunDirectory(copy).policy_file.write_text(ExitPolicy((0.9, 0.9, -1)).to_json())
    with pytest.raises(ValueError, match="thresholds for 3 exits, the cascade has 2"):
        judge_run(copy, **CPU)


# ---------------------------------------------------------------------------------------------------------- it pays off


@pytest.mark.slow
def test_on_digits_early_exit_pays(tmp_path):
    """Nearly the last exit's accuracy for less than its cost, with thresholds that never saw the test split."""
    config = TrainConfig(
        model="dvt_vit_digits", norm="dtn", epochs=8, batch_size=32, lr=3e-3, augment=AugmentConfig(recipe="none")
    )
    train_run(config, tmp_path / "x")
    result = calibrate_run(tmp_path / "x", Goal(accuracy=0.95), **CPU)
    last = result["anytime"][-1]
    assert last > 0.93
    cheapest = min(point["gmacs"] for point in result["curve"] if point["accuracy"] >= last - 0.005)
    assert cheapest < 0.8 * result["policy"]["gmacs"][-1]
    assert result["accuracy"] > 0.93 and result["gmacs"] < result["policy"]["gmacs"][-1]


def test_without_a_test_split_validation_is_cut_in_two(copy, tmp_path):
    """A folder with train and val only: thresholds are found on one half and judged on the other, whichever way it is asked."""
    from dataclasses import replace

    from dynavit.data.splits import cut_validation
    from dynavit.engine.progress import Progress

    class Notes(Progress):
        def note(self, text):
            told.append(text)

    told = []
    data = open_digits(None, DataConfig())
    data = replace(data, splits={name: split for name, split in data.splits.items() if name != "test"})
    result = calibrate_run(copy, Goal(gmacs=BUDGET), data=data, progress=Notes(), **CPU)
    first, second = cut_validation(data.splits["val"].labels, 0.5, 0)
    assert not set(first.tolist()) & set(second.tolist()) and len(first) + len(second) == 144
    note = f"digits has no test split: {len(first)} of its 144 validation images are for finding thresholds, the other"
    assert note in told[0] and "split_seed=0" in told[0]
    assert (result["samples"], result["split"]) == (len(second), "val (second part)")
    found = read_policy(copy).found_on
    assert (found.samples, found.split, found.seed) == (len(first), "val (first part)", 0)
    _, correct, _ = answers(copy, "val")
    assert result["anytime"] == correct[:, second].double().mean(1).tolist()
    assert list(read_policy(copy).accuracy) == correct[:, first].double().mean(1).tolist()
    assert judge_run(copy, data=data, **CPU)["samples"] == len(second)
    assert judge_run(copy, data=data, judge="val", **CPU)["samples"] == 144
