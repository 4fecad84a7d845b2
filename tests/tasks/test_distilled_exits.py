"""The loss of distilled exits against its formula in plain loops over samples and classes, in float64."""

from math import exp, log
from types import SimpleNamespace

import pytest
import torch

from dynavit.tasks.distilled_exits import DistilledExits
from dynavit.tasks.early_exit import EarlyExit
from dynavit.tasks.options import DistilledExitsOptions

from .test_early_exit import ThreeHeads, batch_of


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    return batch_of(inputs, torch.randint(7, (50,), generator=generator))


def softmax(logits, temperature):
    powers = [exp(z / temperature) for z in logits]
    return [power / sum(powers) for power in powers]


def plain_loss(logits, teacher, label, share, temperature):
    """Of one image at one exit before the last."""
    p, q = softmax(teacher, temperature), softmax(logits, temperature)
    divergence = sum(a * log(a / b) for a, b in zip(p, q, strict=True))
    return -(1 - share) * log(softmax(logits, 1)[label]) + share * temperature**2 * divergence


@pytest.mark.parametrize(("share", "temperature"), [(0.5, 2.0), (1.0, 1.0), (0.25, 3.0)])
def test_loss_is_the_formula(batch, share, temperature):
    model = ThreeHeads()
    task = DistilledExits(model, 7, (0.5, 2.0, 1.0), share, temperature)
    first, second, last = (logits.tolist() for logits in model(batch.inputs))
    outputs = task(batch)
    for k, student in ((1, first), (2, second)):
        each = [plain_loss(*row, share, temperature) for row in zip(student, last, batch.targets.tolist(), strict=True)]
        assert outputs[f"loss_exit{k}"].item() == pytest.approx(sum(each) / len(each), rel=1e-12)
    assert outputs["loss_exit3"].item() == pytest.approx(EarlyExit(model, 7)(batch)["loss_exit3"].item())
    parts = [outputs[f"loss_exit{k}"].item() for k in (1, 2, 3)]
    assert outputs["loss"].item() == pytest.approx(0.5 * parts[0] + 2 * parts[1] + parts[2])


def test_the_last_exit_learns_from_the_labels_alone(batch):
    model = ThreeHeads()
    loss = DistilledExits(model, 7, share=1.0)(batch)["loss"]
    (found,) = torch.autograd.grad(loss, model.exits[-1].weight)
    (alone,) = torch.autograd.grad(EarlyExit(model, 7)(batch)["loss_exit3"], model.exits[-1].weight)
    torch.testing.assert_close(found, alone)


def test_an_exit_that_answers_as_the_last_one_has_nothing_to_learn_from_it(batch):
    model = ThreeHeads()
    model.exits[0].load_state_dict(model.exits[2].state_dict())
    assert DistilledExits(model, 7, share=1.0)(batch)["loss_exit1"].item() == pytest.approx(0, abs=1e-12)


def test_without_a_share_it_is_early_exit(batch):
    model = ThreeHeads()
    assert DistilledExits(model, 7, share=0.0)(batch) == EarlyExit(model, 7)(batch)


def test_options_reach_the_loss():
    data = SimpleNamespace(classes=list("abcdefg"))
    task = DistilledExits.build(ThreeHeads(), data, DistilledExitsOptions(weights=[1, 2, 3], share=0.7, temperature=1.5))
    assert (task.weights, task.share, task.temperature) == ((1, 2, 3), 0.7, 1.5)
