"""Self-distillation through the training loop: exact resume, two processes, and that it learns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dynavit
from dynavit.common.ended import EndedError
from dynavit.engine import checkpoint
from dynavit.engine.log import read_log
from dynavit.runs.config import TrainConfig, from_plain
from dynavit.runs.directory import RunDirectory
from dynavit.tasks.dino import Dino

pytestmark = pytest.mark.usefixtures("probes_of_few_strengths")

TINY = {
    "task": "dino",
    "model": "vit_micro",
    "norm": "dtn",
    "batch_size": 24,
    "epochs": 3,
    "lr": 1e-3,
    "seed": 3,
    "task_options": {
        "local_crops": 2,
        "local_size": 4,
        "local_scale": [0.3, 0.6],
        "prototypes": 32,
        "hidden": 24,
        "bottleneck": 8,
        "bank": 60,
        "neighbours": 5,
        "momentum": 0.99,
    },
    "model_options": {"embed_dim": 18, "heads": 9, "depth": 2, "norm_blocks": 1, "class_token": "late", "drop_path_rate": 0.1},
    "loading": {"limit": 60, "val_limit": 20, "test_limit": 20},
    "optim": {"weight_decay": 0.04, "weight_decay_end": 0.4, "clip": 3.0, "clip_mode": "per_tensor"},
    "engine": {"checkpoint_every": 2, "log_every": 1, "scalars_every": 1, "device": "cpu"},
}


def trained(out, resume=False, **changes):
    plain = json.loads(json.dumps(TINY))
    for name, value in changes.items():
        plain[name] = {**plain[name], **value} if isinstance(value, dict) else value
    dynavit.train_run(from_plain(TrainConfig, plain), out, resume=resume)
    return RunDirectory(out)


def weights(run):
    files = ("model.safetensors", "task.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(run.checkpoints / "last" / file).items()}


def lines(run):
    return [{name: value for name, value in line.items() if name != "time"} for line in read_log(run.metrics_file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("dino") / "whole")


class Killed(BaseException):
    """As SIGKILL: nothing is written any more."""


def test_what_a_run_holds(whole):
    own = load_file(whole.checkpoints / "last" / "task.safetensors")
    assert {
        "task:centre",
        "task:watch.detector",
        "task:student.head.prototypes.v",
        "task:teacher_head.prototypes.v",
    } <= own.keys()
    steps = [line for line in lines(whole) if line["kind"] == "train"]
    assert len(steps) == 6 and {"loss", "code_entropy", "kl", "weight_decay", "lr"} <= steps[0].keys()
    scalars = [line["values"]["task:"] for line in lines(whole) if line["kind"] == "scalars"]
    assert {"temperature", "momentum", "gradient_backbone", "gradient_head", "centre_norm", "collapsed"} <= scalars[0].keys()
    paths = {path for line in lines(whole) if line["kind"] == "scalars" for path in line["values"]}
    assert {"blocks.0.norm1", "task:student.backbone.blocks.0.norm1"} <= paths  # λ of teacher and student
    found = json.loads(whole.evaluation_file("test").read_text())
    assert {"knn", "linear", "knn_pixels"} <= found.keys() and found["bank"] == 60


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before the step", marks=pytest.mark.slow),
        "before the teacher follows",
        pytest.param("while a checkpoint is written", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_killed_goes_on_bit_for_bit(whole, tmp_path, monkeypatch, moment):
    at = 3  # the fourth of six steps; a checkpoint is written after the second and the fourth

    if moment == "while a checkpoint is written":
        usual, calls = checkpoint.save_file, []

        def save(tensors, file, **more):
            calls.append(file)
            if len(calls) > 4:  # two files of the first checkpoint were written twice
                raise Killed
            usual(tensors, file, **more)

        monkeypatch.setattr(checkpoint, "save_file", save)
    else:
        name = "before_update" if moment == "before the step" else "follow"
        usual = getattr(Dino, name)

        def die(self):
            if self.step == at:
                raise Killed
            usual(self)

        monkeypatch.setattr(Dino, name, die)
    with pytest.raises(Killed):
        trained(tmp_path / "run")
    monkeypatch.undo()
    again = trained(tmp_path / "run", resume=True)
    one, two = weights(whole), weights(again)
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor.nan_to_num(-1.0), two[name].nan_to_num(-1.0)), name
    assert lines(again) == lines(whole)


def test_a_run_of_another_length_is_refused(whole):
    with pytest.raises(ValueError, match="cannot be resumed with other options: epochs was 3"):
        trained(whole.path, resume=True, epochs=4)


def test_a_collapse_ends_a_run_that_wants_it(tmp_path, monkeypatch):
    usual = Dino.targets
    monkeypatch.setattr(Dino, "targets", lambda self, logits, count: torch.full_like(usual(self, logits, count), 1 / 32))
    monkeypatch.setattr("dynavit.tasks.dino.WINDOW", 1)
    with pytest.raises(EndedError, match=r"ended after step 4 of 6, with a checkpoint: collapse \(uniform\)"):
        trained(tmp_path / "run", task_options={"on_collapse": "stop"})
    run = RunDirectory(tmp_path / "run")
    assert any("collapse (uniform)" in line.get("text", "") for line in lines(run))
    assert int(load_file(run.checkpoints / "last" / "task.safetensors")["task:watch.detector"][2]) == 4


def test_the_student_starts_from_the_weights_that_are_given(whole, tmp_path):
    """Teacher and student are both as --init-from says."""
    start = load_file(whole.checkpoints / "last" / "model.safetensors")
    run = trained(tmp_path / "next", init_from=str(whole.path), epochs=0.5, lr=1e-12)
    found = weights(run)
    for name, tensor in start.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[f"task:student.backbone.{name}"], tensor, rtol=1e-5, atol=1e-6)


WORKER = """
import json, sys, torch
sys.path.insert(0, sys.argv[2])
from tasks.test_dino_training import TINY
import dynavit
from dynavit.runs.config import TrainConfig, from_plain
dynavit.train_run(from_plain(TrainConfig, json.loads(sys.argv[3])), sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["centre", "sinkhorn"])
def test_two_processes_are_as_one(tmp_path, targets):
    """25 images in a step: 13 for one process and 12 for the other."""
    plain = json.loads(json.dumps(TINY)) | {"batch_size": 25, "engine": {**TINY["engine"], "precision": "float64"}}
    plain["model_options"]["drop_path_rate"] = 0.0  # processes draw their own
    plain["task_options"]["targets"] = targets
    tests = str(Path(__file__).parents[1])
    (tmp_path / "worker.py").write_text(WORKER)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(tmp_path / "worker.py")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, str(tmp_path / "two"), tests, json.dumps(plain)], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    dynavit.train_run(from_plain(TrainConfig, plain), tmp_path / "one")
    one, two = (weights(RunDirectory(tmp_path / name)) for name in ("one", "two"))
    assert float(one["task:centre"].abs().max()) > 1e-3
    torch.testing.assert_close(two["task:centre"], one["task:centre"], rtol=0, atol=1e-7)
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-6, equal_nan=True, msg=name)
