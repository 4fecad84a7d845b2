"""Costs of training: what is counted and compared, not how long it takes."""

import torch
from torch import nn

from dynavit.bench.cost import Contestant, training_costs
from dynavit.bench.loop import measure_loop
from dynavit.common.batch import Batch
from dynavit.common.task import Task
from dynavit.engine.config import OptimConfig, TrainPlan
from dynavit.engine.optimiser import make_optimiser
from dynavit.norms.ldfn import LearnableDynamicFeatureNorm


class Regression(Task):
    def __init__(self, width):
        super().__init__(nn.Sequential(nn.Linear(4, width)))
        self.steps = 0

    def forward(self, batch):
        self.steps += self.training
        return {"loss": self.model(batch.inputs).square().mean()}


def contestant(task, algorithm="adamw"):
    device = next(task.parameters()).device
    optimiser = make_optimiser(task, OptimConfig(algorithm=algorithm), device)
    return Contestant(task, batch().to(device, torch.float32), optimiser)


class Same:
    steps, samples = 6, 48

    def epoch(self, epoch=0, start=0):
        for _ in range(start, self.steps):
            yield [batch()]


def batch():
    return Batch(torch.ones(8, 4), torch.zeros(8), torch.arange(8), 8, 8)


def test_costs_of_settings_side_by_side():
    contestants = {name: contestant(Regression(width)) for name, width in {"narrow": 2, "wide": 5}.items()}
    narrow, wide = training_costs(contestants, baseline="narrow")
    assert (narrow["name"], narrow["parameters"], narrow["gmacs"]) == ("narrow", 10, 8e-9)
    assert (wide["parameters"], wide["gmacs"]) == (25, 20e-9)
    assert narrow["step_ratio"] == 1.0 and wide["step_ratio"] > 0
    assert 3 <= wide["rounds"] <= 15 and wide["step_ratio_quartiles"] == sorted(wide["step_ratio_quartiles"])


def test_steps_on_a_device_are_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    there = torch.device("meta")
    (cost,) = training_costs({"one": contestant(Regression(2).to(there))}, baseline="one")
    assert {str(device) for device in waited} == {"meta"} and len(waited) == 2 * (1 + cost["rounds"])


def test_a_step_is_one_of_the_middle_of_the_run():
    task = Regression(4)
    task.model.append(nn.Unflatten(1, (1, 4)))  # a token
    task.model.append(norm := LearnableDynamicFeatureNorm(4, heads=1))
    training_costs({"one": contestant(task)}, baseline="one")
    assert 0 < norm.blend < 1, "both of its norms are at work"


def test_a_step_has_the_optimiser_of_the_run():
    task = Regression(4)
    task.model.insert(0, nn.Linear(4, 4))  # a hidden layer, which is Muon's
    one = contestant(task, "muon")
    before = task.model[0].weight.clone()
    training_costs({"one": one}, baseline="one")
    (hidden,) = (group["params"] for group in one.optimiser.param_groups if group["matrices"])
    assert all(one.optimiser.state[parameter] for parameter in hidden), "it made the steps"
    torch.testing.assert_close(task.model[0].weight, before)


def test_the_loop_and_the_bare_loop_take_as_many_steps():
    task = Regression(3)
    before = task.model[0].weight.clone()
    cost = measure_loop(task, Same(), TrainPlan(), steps=5)
    assert cost.steps == task.steps == 5 and cost.batch_size == 8
    assert not torch.equal(task.model[0].weight, before), "our loop really trained"
    assert cost.bare_step > 0 and cost.whole_ratio > 0
    assert cost.to_json(config={})["machine"]["torch"] == torch.__version__
