"""Which parameters are decayed, how fast layers learn, and the optimiser's state by name."""

import pytest
import torch
from torch import nn

from dynavit.engine.config import OptimConfig
from dynavit.engine.contract import Task
from dynavit.engine.optimiser import (
    layer_scales,
    load_optimiser_state,
    make_optimiser,
    optimiser_state,
    parameter_groups,
    set_lr,
)
from dynavit.models import create_model

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

    def get_classifier(self):
        return self.head

    def no_weight_decay(self):
        return {"token"}

    def group_matcher(self, coarse=False):
        return {"stem": r"^token|^gate", "blocks": [(r"^blocks\.(\d+)", None)]}


def test_every_trainable_parameter_is_in_exactly_one_group():
    model = Stack()
    for options in ((0.1,), (0.1, 0.5), (0.0,), (0.1, 1.0, 0.01), (0.1, 0.5, 0.01)):
        groups = parameter_groups(model, *options)
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


def test_everything_can_be_decayed():
    """Biases, norms, tokens, and what a task holds beside its model."""
    model = Stack()
    (group,) = parameter_groups(model, 0.1, decay_all=True)
    assert group["weight_decay"] == 0.1 and len(group["params"]) == sum(p.requires_grad for p in model.parameters())
    task = Task(model)
    task.scale = nn.Parameter(torch.ones(3))
    made = make_optimiser(task, OptimConfig(weight_decay=0.1, decay_all=True), CPU)
    assert {group["weight_decay"] for group in made.param_groups} == {0.1}
    spared = make_optimiser(task, OptimConfig(weight_decay=0.1), CPU)
    assert {group["weight_decay"] for group in spared.param_groups} == {0.0, 0.1}


def test_layers_learn_slower_towards_the_image():
    model = Stack()
    scales = layer_scales(model, 0.5)
    assert scales["head.weight"] == 1.0
    assert scales["blocks.1.weight"] == 0.5 and scales["blocks.0.bias"] == 0.25
    assert scales["token"] == scales["gate.mix"] == 0.125
    optimiser = make_optimiser(Task(model), OptimConfig(layer_decay=0.5), CPU)
    set_lr(optimiser, 0.2)
    found = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    assert found[id(model.token)] == 0.2 * 0.125 and found[id(model.head.weight)] == 0.2


def rates(model, **options):
    """{parameter name: factor on its learning rate}"""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = make_optimiser(Task(model), OptimConfig(**options), CPU).param_groups
    return {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}


def test_the_backbone_learns_slower_than_the_classifier():
    found = rates(Stack(), backbone_lr=0.25)
    assert found.pop("head.weight") == found.pop("head.bias") == 1.0  # and `tied.weight`, which is the same
    assert "tied.bias" in found and set(found.values()) == {0.25}
    both = rates(Stack(), backbone_lr=0.25, layer_decay=0.5)
    assert both["head.weight"] == 1.0 and both["blocks.1.weight"] == 0.5 * 0.25 and both["token"] == 0.125 * 0.25


def test_every_head_of_a_cascade_is_a_classifier_and_nothing_is_forgotten():
    model = create_model("dvt_vit_digits")
    found = rates(model, backbone_lr=0.01)
    assert found.keys() == dict(model.named_parameters()).keys()
    fast = {"exits.0.head.weight", "exits.0.head.bias", "exits.1.head.weight", "exits.1.head.bias"}
    assert {name for name, rate in found.items() if rate == 1.0} == fast
    assert {rate for name, rate in found.items() if name not in fast} == {0.01}
    slow = {name.rpartition(".")[0] for name in found.keys() - fast}
    assert {"exits.0.norm", "exits.1.norm", "exits.1", "exits.1.tokenizer.proj"} <= slow
    assert any(name.startswith("exits.1.relation_reuse.") for name in slow)


def test_backbone_lr_needs_a_model_that_knows_its_classifier():
    with pytest.raises(ValueError, match="backbone_lr=0.1 needs a model with a classifier .* and Linear has none"):
        parameter_groups(nn.Linear(2, 2), 0.1, backbone_lr=0.1)
    headless = Stack()
    headless.head = nn.Identity()
    with pytest.raises(ValueError, match="and Stack has none"):
        parameter_groups(headless, 0.1, backbone_lr=0.1)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match=r"unknown optim\.algorithm 'sdg'\. Did you mean 'sgd'"):
        make_optimiser(Task(nn.Linear(2, 2)), OptimConfig(algorithm="sdg"), CPU)


def test_layer_decay_needs_a_model_that_knows_its_layers():
    with pytest.raises(ValueError, match="layer_decay=0.5 needs a model that says .* and Linear does not"):
        parameter_groups(nn.Linear(2, 2), 0.1, 0.5)


def test_a_frozen_model_is_refused():
    with pytest.raises(ValueError, match="no parameter to train"):
        make_optimiser(Task(nn.Linear(2, 2).requires_grad_(False)), OptimConfig(), CPU)


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
    optimiser = make_optimiser(Task(layer), config, CPU)
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


def test_sgd_with_momentum_in_float64():
    """v <- momentum v + (g + decay w), w <- w - rate v, from v = 0; the classifier at the full rate, the rest at a fifth."""
    torch.manual_seed(0)
    model = Stack().double()
    config = OptimConfig(algorithm="sgd", momentum=0.7, weight_decay=0.3, backbone_lr=0.2)
    optimiser = make_optimiser(Task(model), config, CPU)
    plain = dict(model.named_parameters())
    start = {name: p.detach().clone() for name, p in plain.items()}
    w = {name: p.clone() for name, p in start.items()}
    v = {name: torch.zeros_like(p) for name, p in w.items()}
    for t in range(1, 6):
        lr = 0.005 / t
        set_lr(optimiser, lr)
        optimiser.zero_grad()
        x = torch.full((4, 3), float(t), dtype=torch.float64)
        (model.head(model.blocks[0](x + model.token) @ model.gate.kernel) ** 2).mean().backward()
        for name in ("token", "blocks.0.weight", "blocks.0.bias", "gate.kernel", "head.weight", "head.bias"):
            decay = 0.3 if name in ("blocks.0.weight", "gate.kernel", "head.weight") else 0.0
            rate = lr if name.startswith("head") else 0.2 * lr
            v[name] = 0.7 * v[name] + plain[name].grad + decay * w[name]
            w[name] = w[name] - rate * v[name]
        optimiser.step()
        for name, parameter in plain.items():
            torch.testing.assert_close(parameter.detach(), w[name], rtol=1e-10, atol=1e-12)
    assert all((w[name] != start[name]).any() for name in ("token", "blocks.0.bias", "gate.kernel", "head.weight"))


@pytest.mark.parametrize("algorithm", ["adamw", "sgd", "muon"])
def test_state_by_name_continues_bit_for_bit(algorithm):
    config = OptimConfig(algorithm=algorithm, backbone_lr=0.5)
    torch.manual_seed(0)
    straight = Stack()
    torch.manual_seed(0)
    broken = Stack()
    first = make_optimiser(Task(straight), config, CPU)
    steps(straight, first, range(6))
    before = make_optimiser(Task(broken), config, CPU)
    steps(broken, before, range(3))
    state = optimiser_state(before, Task(broken))
    assert set(state) == {"blocks.0.weight", "blocks.0.bias", "head.weight", "head.bias"}  # those that had a gradient
    after = make_optimiser(Task(broken), config, CPU)
    load_optimiser_state(after, Task(broken), state)
    steps(broken, after, range(3, 6))
    for (name, a), b in zip(straight.named_parameters(), broken.parameters(), strict=True):
        assert torch.equal(a, b), name
    for name, values in optimiser_state(first, Task(straight)).items():
        for key, value in values.items():
            assert torch.equal(value, optimiser_state(after, Task(broken))[name][key]), (name, key)


@pytest.mark.parametrize("algorithm", ["adamw", "sgd", "muon"])
def test_a_parameter_may_get_its_first_gradient_late(algorithm):
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    optimiser = make_optimiser(Task(model), OptimConfig(algorithm=algorithm), CPU)
    set_lr(optimiser, 0.1)
    late = model[1].weight.detach().clone()
    for layers in (model[:1], model):
        torch.testing.assert_close(model[1].weight.detach(), late, rtol=0, atol=0)
        optimiser.zero_grad()
        sum(layer(torch.ones(1, 2)).sum() for layer in layers).backward()
        optimiser.step()
    assert (model[1].weight != late).all()


def test_state_of_another_model_is_refused():
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="not trained.*'other'"):
        load_optimiser_state(make_optimiser(Task(layer), OptimConfig(), CPU), Task(layer), {"other": {}})
