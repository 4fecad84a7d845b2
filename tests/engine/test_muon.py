"""Muon by its equations: singular vectors from an SVD in float64, and AdamW for everything that is no hidden matrix."""

import pytest
import torch
from torch import nn

from dynavit.engine.config import OptimConfig
from dynavit.engine.contract import Task
from dynavit.engine.muon import QUINTIC, ROUNDS, Muon, orthogonal
from dynavit.engine.optimiser import make_optimiser, set_lr

CPU = torch.device("cpu")


class Net(nn.Module):
    """A convolution, a matrix that is used twice as wide as high, a norm, a token that is exempt, and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 2)
        self.token = nn.Parameter(torch.full((1, 4), 0.1))
        self.wide, self.same = nn.Linear(4, 8), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def no_weight_decay(self):
        return {"token"}

    def get_classifier(self):
        return self.head

    def forward(self, x):
        x = self.stem(x).flatten(2).mT + self.token
        return self.head(self.norm(self.same(self.wide(x).tanh())).mean(1))


def after_rounds(values):
    """Singular values in [0, 1] after the polynomial's rounds, one by one."""
    a, b, c = QUINTIC
    for _ in range(ROUNDS):
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 4, 9), (2, 9, 4), (1, 1, 5)])
def test_only_singular_values_change(shape):
    torch.manual_seed(0)
    matrices = torch.randn(shape, dtype=torch.float64) * 1e3
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    wanted = u @ torch.diag_embed(after_rounds(s / s.norm(dim=1, keepdim=True))) @ v
    torch.testing.assert_close(orthogonal(matrices), wanted, rtol=1e-9, atol=1e-9)


def test_singular_values_end_near_one():
    values = after_rounds(torch.logspace(-2, 0, 500, dtype=torch.float64))
    assert values.min() > 0.68 and values.max() < 1.21
    assert orthogonal(torch.zeros(1, 3, 3)).eq(0).all()  # no gradient, no step


def test_steps_are_the_equations_in_float64():
    torch.manual_seed(0)
    model = Net().double()
    config = OptimConfig(algorithm="muon", momentum=0.9, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-6)
    optimiser = make_optimiser(Task(model), config, CPU)
    hidden = {"stem.weight", "wide.weight", "same.weight"}
    w = {name: p.detach().clone() for name, p in model.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in w.items()}
    v = {name: torch.zeros_like(p) for name, p in w.items()}
    for t in range(1, 5):
        lr = 0.05 / t
        set_lr(optimiser, lr)
        optimiser.zero_grad()
        (model(torch.randn(6, 3, 4, 4, dtype=torch.float64)) ** 2).sum().backward()
        for name, parameter in model.named_parameters():
            g = parameter.grad
            if name in hidden:
                m[name] = 0.9 * m[name] + 0.1 * g
                d = (0.1 * g + 0.9 * m[name]).reshape(len(g), -1)
                left, s, right = torch.linalg.svd(d, full_matrices=False)
                turned = left @ torch.diag(after_rounds(s / s.norm())) @ right
                update = 0.2 * max(d.shape) ** 0.5 * turned.reshape(g.shape)
            else:
                m[name] = 0.8 * m[name] + 0.2 * g
                v[name] = 0.95 * v[name] + 0.05 * g**2
                update = (m[name] / (1 - 0.8**t)) / ((v[name] / (1 - 0.95**t)).sqrt() + 1e-6)
            decay = 0.3 if name in hidden | {"head.weight"} else 0.0
            w[name] = w[name] - lr * decay * w[name] - lr * update
        optimiser.step()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), w[name], rtol=1e-7, atol=1e-9, msg=name)


@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.0}, {"decay_all": True}])
def test_which_parameters_are_matrices(decay):
    """Whatever is decayed: not words, tokens, the classifier, nor what the task holds beside the model."""
    model = Net()
    model.words = nn.Embedding(7, 4)
    task = Task(model)
    task.prototypes = nn.Parameter(torch.ones(3, 3))
    optimiser = make_optimiser(task, OptimConfig(algorithm="muon", **decay), CPU)
    assert isinstance(optimiser, Muon)
    names = {id(p): name for name, p in task.named_parameters()}
    found = [(names[id(p)], group["matrices"]) for group in optimiser.param_groups for p in group["params"]]
    assert len(found) == len(names)
    assert {name for name, matrices in found if matrices} == {
        "model.stem.weight",
        "model.wide.weight",
        "model.same.weight",
    }


def test_without_hidden_matrices_it_is_adamw():
    torch.manual_seed(0)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    for layer, algorithm in ((first, "adamw"), (second, "muon")):
        layer.get_classifier = lambda layer=layer: layer
        optimiser = make_optimiser(Task(layer), OptimConfig(algorithm=algorithm), CPU)
        set_lr(optimiser, 0.1)
        for _ in range(3):
            optimiser.zero_grad()
            (layer(torch.ones(1, 3)) ** 2).sum().backward()
            optimiser.step()
    assert torch.equal(first.weight, second.weight) and torch.equal(first.bias, second.bias)


def test_a_closure_is_refused():
    optimiser = make_optimiser(Task(Net()), OptimConfig(algorithm="muon"), CPU)
    with pytest.raises(ValueError, match="without a closure"):
        optimiser.step(lambda: 0.0)
