"""Which parameters are decayed, how fast layers learn, and the optimiser's state by name."""

import pytest
import torch
from torch import nn

from dynavit.engine.config import OptimConfig
from dynavit.engine.optimiser import (
    layer_scales,
    load_optimiser_state,
    make_optimiser,
    optimiser_state,
    parameter_groups,
    set_lr,
)

CPU = torch.device("cpu")


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.kernel = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3, 3))

    def no_weight_decay_parameters(self):
        return {"mix"}


class Stack(nn.Module):
    """Two blocks, a token the model itself exempts, a frozen layer, and tied weights."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, 3))
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.gate, self.frozen = Gate(), nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.head.weight

    def no_weight_decay(self):
        return {"token"}

    def group_matcher(self, coarse=False):
        return {"stem": r"^token|^gate", "blocks": [(r"^blocks\.(\d+)", None)]}


def test_every_trainable_parameter_is_in_exactly_one_group():
    model = Stack()
    for groups in (parameter_groups(model, 0.1), parameter_groups(model, 0.1, 0.5), parameter_groups(model, 0.0)):
        grouped = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)


def test_what_is_decayed():
    model = Stack()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, 0.1)
    decayed = {names[id(p)] for group in groups if group["weight_decay"] == 0.1 for p in group["params"]}
    spared = {names[id(p)] for group in groups if group["weight_decay"] == 0.0 for p in group["params"]}
    assert decayed == {"blocks.0.weight", "blocks.1.weight", "gate.kernel", "head.weight"}
    assert spared == {"token", "gate.mix", "blocks.0.bias", "blocks.1.bias", "head.bias", "tied.bias"}


def test_layers_learn_slower_towards_the_image():
    model = Stack()
    scales = layer_scales(model, 0.5)
    assert scales["head.weight"] == 1.0
    assert scales["blocks.1.weight"] == 0.5 and scales["blocks.0.bias"] == 0.25
    assert scales["token"] == scales["gate.mix"] == 0.125
    optimiser = make_optimiser(model, OptimConfig(layer_decay=0.5), CPU)
    set_lr(optimiser, 0.2)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    assert rates[id(model.token)] == 0.2 * 0.125 and rates[id(model.head.weight)] == 0.2


def test_layer_decay_needs_a_model_that_knows_its_layers():
    with pytest.raises(ValueError, match="layer_decay=0.5 needs a model that says .* and Linear does not"):
        parameter_groups(nn.Linear(2, 2), 0.1, 0.5)


def test_a_frozen_model_is_refused():
    with pytest.raises(ValueError, match="no parameter to train"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), 0.1)


def steps(model, optimiser, numbers):
    for number in numbers:
        set_lr(optimiser, 0.01 * (number + 1))
        optimiser.zero_grad()
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(number))
        (model.head(model.blocks[0](x)) ** 2).sum().backward()
        optimiser.step()


def test_adamw_is_the_papers_in_float64():
    """Loshchilov & Hutter, ICLR 2019, written out for one matrix (decayed) and one bias (not)."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2, dtype=torch.float64)
    config = OptimConfig(weight_decay=0.3, betas=(0.8, 0.95), eps=1e-6)
    optimiser = make_optimiser(layer, config, CPU)
    w = {name: p.detach().clone() for name, p in layer.named_parameters()}
    m = {name: torch.zeros_like(p) for name, p in w.items()}
    v = {name: torch.zeros_like(p) for name, p in w.items()}
    for t in range(1, 6):
        lr = 0.05 / t
        set_lr(optimiser, lr)
        optimiser.zero_grad()
        (layer(torch.full((4, 3), float(t), dtype=torch.float64)) ** 3).mean().backward()
        for name, parameter in layer.named_parameters():
            g = parameter.grad
            m[name] = 0.8 * m[name] + 0.2 * g
            v[name] = 0.95 * v[name] + 0.05 * g**2
            decay = 0.3 if name == "weight" else 0.0
            update = (m[name] / (1 - 0.8**t)) / ((v[name] / (1 - 0.95**t)).sqrt() + 1e-6)
            w[name] = w[name] - lr * decay * w[name] - lr * update
        optimiser.step()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameter.detach(), w[name], rtol=1e-10, atol=1e-12)


def test_state_by_name_continues_bit_for_bit():
    torch.manual_seed(0)
    straight = Stack()
    torch.manual_seed(0)
    broken = Stack()
    first = make_optimiser(straight, OptimConfig(), CPU)
    steps(straight, first, range(6))
    before = make_optimiser(broken, OptimConfig(), CPU)
    steps(broken, before, range(3))
    state = optimiser_state(before, broken)
    assert set(state) == {"blocks.0.weight", "blocks.0.bias", "head.weight", "head.bias"}  # those that had a gradient
    after = make_optimiser(broken, OptimConfig(), CPU)
    load_optimiser_state(after, broken, state)
    steps(broken, after, range(3, 6))
    for (name, a), b in zip(straight.named_parameters(), broken.parameters(), strict=True):
        assert torch.equal(a, b), name
    for name, values in optimiser_state(first, straight).items():
        for key, value in values.items():
            assert torch.equal(value, optimiser_state(after, broken)[name][key]), (name, key)


def test_state_of_another_model_is_refused():
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="not trained.*'other'"):
        load_optimiser_state(make_optimiser(layer, OptimConfig(), CPU), layer, {"other": {}})
