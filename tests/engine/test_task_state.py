"""Tasks that hold more than their model: trained, saved and resumed like it, under names of their own."""

import pytest
import torch
from torch import nn

from dynavit.common.metric import Metric
from dynavit.engine.checkpoint import TASK, read_checkpoint
from dynavit.engine.config import EngineConfig, OptimConfig, TrainPlan
from dynavit.engine.log import read_log
from dynavit.engine.loop import train
from dynavit.engine.processes import Processes
from dynavit.engine.task_state import module_path, own_state, trained_parameters
from dynavit.runs.directory import RunDirectory
from engine.tiny import CLASSES, FEATURES, TinyLoader, TinyTask, eval_loader


class WithTeacher(TinyTask):
    """A model, a head that is trained beside it, and a teacher that follows the model after each step."""

    metrics = (Metric("loss", "loss", better="smaller"),)

    def __init__(self):
        super().__init__(dropout=0.1)
        self.head = nn.Linear(CLASSES, CLASSES)
        self.teacher = nn.Linear(FEATURES, 8).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(CLASSES))
        self.largest = 0.0

    def forward(self, batch):
        logits = self.head(self.model(batch.inputs)) - self.centre
        return {"loss": nn.functional.cross_entropy(logits, batch.targets)}

    def before_update(self):
        self.largest = max(self.largest, float(self.head.weight.grad.abs().max()))
        self.head.bias.grad = None  # a task may drop a gradient

    @torch.no_grad()
    def commit_statistics(self):
        self.teacher.weight.lerp_(self.model[0].weight, 0.1)
        self.centre += 0.01

    def scalars(self):
        return {"centre": float(self.centre[0])}


def trained(path, steps, resume=False, every=2):
    torch.manual_seed(0)
    task = WithTeacher()
    plan = TrainPlan(epochs=steps / 4, lr=0.01, optim=OptimConfig(), engine=EngineConfig(checkpoint_every=every, device="cpu"))
    run = RunDirectory.create(path, resume=resume)
    train(task, TinyLoader(), eval_loader(), plan, run, processes=Processes(plan.engine), resume=resume)
    return task, run


def test_names():
    task = WithTeacher()
    assert set(own_state(task)) == {
        "task:head.weight",
        "task:head.bias",
        "task:teacher.weight",
        "task:teacher.bias",
        "task:centre",
    }
    assert {"0.weight", "task:head.weight"} <= trained_parameters(task).keys()
    assert not any("teacher" in name for name in trained_parameters(task))
    assert [module_path(path) for path in ("model", "model.0", "head", "")] == ["", "0", "task:head", "task:"]


def test_everything_is_trained_saved_and_resumed(tmp_path, monkeypatch):
    whole, run = trained(tmp_path / "whole", 8)
    assert whole.largest > 0 and float(whole.centre[0]) == pytest.approx(0.08)
    assert not torch.equal(whole.head.weight, WithTeacher().head.weight)
    stored = read_checkpoint(run.checkpoints / "last")
    assert (run.checkpoints / "last" / TASK).is_file() and "task:teacher.weight" in stored.task
    assert set(stored.model) == set(whole.model.state_dict())

    class Killed(BaseException): ...

    usual = WithTeacher.before_update

    def die(self):
        if float(self.centre[0]) > 0.045:
            raise Killed
        usual(self)

    monkeypatch.setattr(WithTeacher, "before_update", die)
    with pytest.raises(Killed):
        trained(tmp_path / "broken", 8)
    monkeypatch.undo()
    again, _ = trained(tmp_path / "broken", 8, resume=True)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_metric_may_be_better_when_smaller(tmp_path):
    _, run = trained(tmp_path / "run", 8)
    losses = {line["step"]: line["loss"] for line in read_log(run.metrics_file) if line["kind"] == "eval"}
    best = run.finished()["best"]
    assert best["value"] == min(losses.values()) and best["step"] == min(losses, key=losses.get)


def test_what_the_task_reports_is_logged_under_its_own_name(tmp_path):
    _, run = trained(tmp_path / "run", 4)
    lines = [line for line in read_log(run.metrics_file) if line["kind"] == "scalars"]
    assert lines[-1]["values"]["task:"]["centre"] == [pytest.approx(0.04)]
    assert "commits" in lines[-1]["values"]["1"]


def test_without_a_metric_nothing_is_best(tmp_path, monkeypatch):
    monkeypatch.setattr(WithTeacher, "metrics", ())
    _, run = trained(tmp_path / "run", 4)
    assert run.finished()["best"] is None and not (run.checkpoints / "best").exists()
