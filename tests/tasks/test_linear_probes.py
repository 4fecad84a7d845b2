"""Linear classifiers on frozen features: the optimum of logistic regression, and SGD as torch makes it."""

import pytest
import torch
import torch.nn.functional as F

from dynavit.tasks.cached_probe import Linear, fitted, probe
from dynavit.tasks.linear_probe import RATES, Heads, best_head


def separable(n=120, classes=3, seed=0, noise=0.3):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = 3 * torch.eye(classes, 5)
    return centres[labels] + noise * torch.randn(n, 5, generator=generator), labels


@pytest.mark.parametrize("l2", [1.0, 1e-2])
def test_the_fit_is_the_optimum(l2):
    """At the optimum the gradient, written out, is zero; and no small step away from it is better."""
    x, y = separable(noise=2.0)
    x = x.double()
    head = fitted(x, y, 3, l2)
    error = ((x @ head.weight + head.bias).softmax(-1) - F.one_hot(y, 3)) / len(y)
    gradient = x.T @ error + l2 * head.weight
    assert float(gradient.abs().max()) < 1e-5 and float(error.sum(0).abs().max()) < 1e-5


def test_a_separable_toy_is_solved_and_chosen_on_what_is_kept_back():
    x, y = separable()
    head, about = probe(x, y, 3)
    test_x, test_y = separable(seed=1)
    assert float((head(test_x).argmax(-1) == test_y).double().mean()) == 1.0
    assert about["trained_on"] + about["chosen_on"] == len(y) and about["chosen_on"] == 12
    held = [row["held_out"] for row in about["heads"]]
    assert about["chosen"] == held.index(max(held))


def test_the_choice_is_not_by_what_was_trained_on():
    """Labels of noise: the weakest strength fits its own images best, and what is kept back decides otherwise."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 60, generator=generator), torch.arange(100) % 2
    _, about = probe(x, y, 2)
    held = [row["held_out"] for row in about["heads"]]
    assert max(held) < 0.9 and held[about["chosen"]] == max(held)


def test_a_step_of_all_heads_is_torchs_sgd():
    x, y = separable(n=24, noise=1.0)
    heads = Heads(5, 3, 512, rates=(0.1, 0.01), seed=3)
    start = Linear(heads.weight[0].clone(), heads.bias[0, 0].clone())
    assert torch.equal(heads.weight[0], heads.weight[1]) and 0.005 < float(heads.weight.std()) < 0.02
    for step in range(3):
        heads.step(x, y, step, 10)
    for number, rate in enumerate((0.1, 0.01)):
        weight, bias = (part.clone().requires_grad_() for part in start)
        optimiser = torch.optim.SGD([weight, bias], lr=2 * rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10)
        for _ in range(3):
            optimiser.zero_grad()
            F.cross_entropy(x @ weight + bias, y).backward()
            optimiser.step()
            schedule.step()
        torch.testing.assert_close(heads.weight[number], weight.detach())
        torch.testing.assert_close(heads.bias[number, 0], bias.detach())


def test_rates_are_the_ladder():
    assert len(RATES) == 13 and RATES[0] == pytest.approx(1e-5) and RATES[-1] == 0.1
    assert tuple(sorted(RATES)) == RATES


def test_the_best_head_of_several_feature_sets():
    x, y = separable(n=60)
    good, bad = Heads(5, 3, 256, rates=(0.001, 0.1)), Heads(5, 3, 256, rates=(0.001, 0.1))
    for step in range(30):
        good.step(x, y, step, 30)
    bad.weight[1] = torch.nan  # one that has diverged is never chosen
    name, number, rows = best_head({"bad": bad, "good": good}, {"bad": x, "good": x}, y)
    assert name == "good" and rows[2 + number]["held_out"] == 1.0 and len(rows) == 4 and rows[1]["held_out"] == 0.0
