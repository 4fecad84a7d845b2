"""A cascade's loss and accuracies against those of its exits, one by one."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dynavit.common.batch import Batch
from dynavit.tasks.classification import Classification
from dynavit.tasks.early_exit import EarlyExit
from dynavit.tasks.options import EarlyExitOptions


class ThreeHeads(nn.Module):
    """Three classifiers that know nothing of each other; counts how often it is called."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.exits = nn.ModuleList(nn.Linear(6, 7, dtype=torch.float64) for _ in range(3))
        self.calls = 0
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x):
        self.calls += 1
        return tuple(exit(x) for exit in self.exits)


def batch_of(inputs, targets, count=None):
    n = len(inputs)
    return Batch(inputs, targets, torch.arange(n), n if count is None else count, n)


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(50, 6, generator=generator, dtype=torch.float64), torch.randint(7, (50,), generator=generator)


def evaluated(model, inputs, targets, sizes):
    evaluator = EarlyExit(model, 7).evaluator()
    for part, target in zip(inputs.split(sizes), targets.split(sizes), strict=True):
        evaluator.update(batch_of(part, target))
    return evaluator


@pytest.mark.parametrize("weights", [None, (0.5, 0.0, 2.0)])
def test_loss_is_the_weighted_sum_of_the_exits_losses(samples, weights):
    model = ThreeHeads()
    outputs = EarlyExit(model, 7, weights)(batch_of(*samples))
    single = [Classification(exit, 7)(batch_of(*samples))["loss"].item() for exit in model.exits]
    assert outputs["loss"].item() == pytest.approx(sum(w * loss for w, loss in zip(weights or (1, 1, 1), single, strict=True)))
    assert [outputs[f"loss_exit{k}"].item() for k in (1, 2, 3)] == pytest.approx(single)
    assert list(outputs) == ["loss", "loss_exit1", "loss_exit2", "loss_exit3", "top1"]
    inputs, targets = samples
    assert outputs["top1"].item() == pytest.approx((model(inputs)[-1].argmax(-1) == targets).double().mean().item())


def test_gradients_are_weighted_too(samples):
    model = ThreeHeads()
    EarlyExit(model, 7, (1, 0, 2))(batch_of(*samples))["loss"].backward()
    for weight, exit in zip((1, 0, 2), model.exits, strict=True):
        (alone,) = torch.autograd.grad(Classification(exit, 7)(batch_of(*samples))["loss"], exit.weight)
        torch.testing.assert_close(exit.weight.grad, weight * alone)


def test_mixed_targets_are_taken(samples):
    inputs, targets = samples
    task = EarlyExit(ThreeHeads(), 7)
    soft = nn.functional.one_hot(targets, 7).double()
    assert task(batch_of(inputs, soft))["loss"].item() == pytest.approx(task(batch_of(inputs, targets))["loss"].item())


def test_evaluation_is_that_of_the_last_exit_and_the_accuracy_of_each(samples):
    model = ThreeHeads()
    evaluator = evaluated(model, *samples, [50])
    assert model.calls == 1
    single = []
    for exit in model.exits:
        single.append(Classification(exit, 7).evaluator())
        single[-1].update(batch_of(*samples))
    accuracies = {f"exit{k}_top1": dict(one.results())["top1"] for k, one in enumerate(single, start=1)}
    assert len(set(accuracies.values())) == 3  # so that no exit can stand for another
    assert dict(evaluator.results()) == dict(single[-1].results()) | accuracies
    assert evaluator.details() == single[-1].details() and evaluator.samples == 50


def test_batches_borrowed_samples_and_processes_do_not_matter(samples):
    inputs, targets = samples
    model = ThreeHeads()
    whole = dict(evaluated(model, inputs, targets, [50]).results())
    first, second = evaluated(model, inputs[:20], targets[:20], [19, 1]), evaluated(model, inputs[20:], targets[20:], [30])
    second.update(batch_of(inputs[:2], targets[:2], count=0))
    ours, theirs = first.totals, second.totals
    assert ours.keys() == theirs.keys()
    first.totals = {name: ours[name] + theirs[name] for name in ours}
    assert dict(first.results()) == pytest.approx(whole, abs=1e-12) and first.samples == 50


def test_a_model_that_does_not_fit_is_explained():
    data = SimpleNamespace(classes=list("abcdefg"))
    assert EarlyExit.build(ThreeHeads(), data, EarlyExitOptions([1, 2, 3])).weights == (1, 2, 3)
    with pytest.raises(ValueError, match="Linear has no exits"):
        EarlyExit.build(nn.Linear(6, 7), data, EarlyExitOptions())
    with pytest.raises(ValueError, match="several exits, which --task early_exit trains"):
        Classification.build(ThreeHeads(), data, Classification.Options())


def test_a_person_reads_the_accuracy_of_each_exit_counted_from_one():
    labels = [metric.label for metric in EarlyExit(ThreeHeads(), 7).metrics]
    assert labels[:5] == ["top-1", "top-5", "exit 1, top-1", "exit 2, top-1", "exit 3, top-1"]
    names = {metric.name for metric in EarlyExit(ThreeHeads(), 7).metrics}
    assert names == set(dict(evaluated(ThreeHeads(), torch.randn(4, 6).double(), torch.arange(4), [4]).results()))


@pytest.mark.parametrize(
    ("weights", "message"),
    [((1, 1), "3 exits, so its losses have as many weights"), ((1, -1, 1), "not negative"), ((0, 0, 0), "nor all zero")],
)
def test_wrong_weights_are_explained(weights, message):
    with pytest.raises(ValueError, match=message):
        EarlyExit(ThreeHeads(), 7, weights)


def test_empty_problems_are_explained():
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        EarlyExit(ThreeHeads(), 1)
    with pytest.raises(ValueError, match="nothing was evaluated"):
        dict(EarlyExit(ThreeHeads(), 7).evaluator().results())


def test_an_exit_whose_logits_are_not_finite_is_wrong_and_counted(samples):
    inputs, targets = samples
    model = ThreeHeads()
    before = dict(evaluated(model, inputs, targets, [50]).results())
    with torch.no_grad():
        model.exits[0].bias[2] = torch.nan
    after = dict(evaluated(model, inputs, targets, [50]).results())
    assert after["exit1_top1"] == 0 and after["not_finite"] == 50
    assert before.pop("exit1_top1") > 0 and {name: after[name] for name in before} == before
