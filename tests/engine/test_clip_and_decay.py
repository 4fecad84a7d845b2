"""Clipping each gradient by itself, a weight decay that changes, and a task that speaks and ends its training."""

import math

import pytest
import torch

from dynavit.common.ended import EndedError
from dynavit.engine.clip import clip_each
from dynavit.engine.config import EngineConfig, OptimConfig, TrainPlan
from dynavit.engine.log import read_log
from dynavit.engine.loop import train
from dynavit.engine.optimiser import make_optimiser, set_weight_decay
from dynavit.engine.processes import Processes
from dynavit.engine.schedule import half_cosine
from dynavit.runs.directory import RunDirectory
from engine.tiny import TinyLoader, TinyTask


def run_training(path, optim, task=None, resume=False):
    plan = TrainPlan(epochs=2, lr=0.02, optim=optim, engine=EngineConfig(device="cpu", precision="float64", log_every=1))
    run = RunDirectory.create(path, resume=resume)
    task = task or TinyTask(dropout=0.0, annealed=False)
    train(task, TinyLoader(), None, plan, run, processes=Processes(plan.engine), resume=resume)
    return task, run


def test_each_gradient_is_bounded_and_small_ones_keep_their_bits():
    torch.manual_seed(0)
    large, small = torch.randn(5, 7), torch.randn(3) * 1e-3
    kept = [large.clone(), small.clone()]
    clip_each([large, small], 2.0)
    torch.testing.assert_close(large, kept[0] * (2.0 / kept[0].norm()))
    assert float(large.norm()) == pytest.approx(2.0)
    assert torch.equal(small, kept[1])


def test_steps_equal_the_formulas(tmp_path):
    """AdamW with clipping per tensor and a weight decay from 0.1 to 0.5, written out plainly in float64."""
    optim = OptimConfig(weight_decay=0.1, weight_decay_end=0.5, clip=0.05, clip_mode="per_tensor", warmup_epochs=0, min_lr=1.0)
    task, run = run_training(tmp_path / "run", optim)
    reference = TinyTask(dropout=0.0, annealed=False).double()
    w = dict(reference.model.named_parameters())
    m, v = ({name: torch.zeros_like(p) for name, p in w.items()} for _ in range(2))
    loader, total, clipped = TinyLoader(), 8, set()
    for step in range(total):
        batches = list(loader.epoch(step // 4))[step % 4]
        x, y = torch.cat([b.inputs for b in batches]).double(), torch.cat([b.targets for b in batches])
        reference.zero_grad()
        torch.nn.functional.cross_entropy(reference.model(x), y).backward()
        decay_now = 0.5 + (0.1 - 0.5) * (1 + math.cos(math.pi * step / total)) / 2
        with torch.no_grad():
            for name, p in w.items():
                norm = float(p.grad.norm())
                g = p.grad * min(1.0, 0.05 / norm)
                clipped |= {(name, norm > 0.05)}
                m[name] = 0.9 * m[name] + 0.1 * g
                v[name] = 0.999 * v[name] + 0.001 * g**2
                decay, t = decay_now if name in ("0.weight", "4.weight") else 0.0, step + 1
                p -= 0.02 * decay * p + 0.02 * (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
    assert {was for _, was in clipped} == {True, False}
    for name, p in task.model.named_parameters():
        torch.testing.assert_close(p, w[name], rtol=1e-10, atol=1e-12)
    logged = [line["weight_decay"] for line in read_log(run.metrics_file) if line["kind"] == "train"]
    assert logged == pytest.approx([half_cosine(step, 8, 0.1, 0.5) for step in range(8)])


def test_only_groups_that_decay_change_and_nothing_grows_out_of_zero():
    task = TinyTask()
    optimiser = make_optimiser(task, OptimConfig(weight_decay=0.1, weight_decay_end=0.5), torch.device("cpu"))
    set_weight_decay(optimiser, 0.3)
    assert {group["weight_decay"] for group in optimiser.param_groups} == {0.0, 0.3}
    with pytest.raises(ValueError, match="weight_decay_end=0.5 is where the decay leads to"):
        make_optimiser(task, OptimConfig(weight_decay=0.0, weight_decay_end=0.5), torch.device("cpu"))


class Ending(TinyTask):
    """Speaks after its second step, and ends the training after the fifth."""

    def __init__(self, last=5):
        super().__init__()
        self.register_buffer("done", torch.zeros((), dtype=torch.int64))
        self.last = last

    def commit_statistics(self):
        self.done += 1

    def events(self):
        if int(self.done) == self.last:
            self.ends = "enough"
        return ["two steps are done"] if int(self.done) == 2 else []


def test_a_task_speaks_and_ends_its_training_with_a_checkpoint(tmp_path):
    with pytest.raises(EndedError, match="ended after step 5 of 8, with a checkpoint: enough"):
        run_training(tmp_path / "run", OptimConfig(), Ending())
    run = RunDirectory(tmp_path / "run")
    notes = [line for line in read_log(run.metrics_file) if line["kind"] == "note"]
    assert [(line["step"], line["text"]) for line in notes] == [(2, "two steps are done")]
    assert run.finished() is None
    # It goes on from there, and ends as one that was not ended.
    again, _ = run_training(tmp_path / "run", OptimConfig(), Ending(last=100), resume=True)
    whole, _ = run_training(tmp_path / "whole", OptimConfig(), Ending(last=100))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
