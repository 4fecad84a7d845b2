"""Non-finite numbers are found where they begin."""

import pytest
import torch
from torch import nn

from dynavit.engine.finite import NonFiniteError, explain


class Log(nn.Module):
    def forward(self, x):
        return x.log()


def network(middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Identity(), middle), nn.Linear(3, 1))


def message(model, run=None):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    error = explain(model, run or (lambda: model(x)), step=17, lr=0.125)
    assert isinstance(error, NonFiniteError) and isinstance(error, ValueError)
    return str(error)


def test_the_first_bad_layer_is_named():
    said = message(network(Log()))
    assert "first in 1.1 (Log): its output has nan, its input is finite" in said
    assert "step 17" in said and "learning rate 0.125" in said and "Try a lower lr" in said


def test_infinity_is_not_nan_and_bad_inputs_are_told():
    class Overflow(nn.Module):
        def forward(self, x):
            return {"deep": [x, x / 0.0 * torch.ones(())]}

    model = nn.Sequential(Overflow())
    assert "0 (Overflow): its output has inf, its input is finite" in message(model, lambda: model(torch.ones(2)))
    model = nn.Sequential(nn.Identity())
    bad = torch.tensor([float("nan")])
    assert "0 (Identity): its output has nan, its input is not finite either" in message(model, lambda: model(bad))


def test_weights_that_are_bad_already():
    model = network(nn.ReLU())
    with torch.no_grad():
        model[2].weight[0, 1] = float("inf")
    assert "the weights of 2.weight (inf, before this step's forward pass)" in message(model)


def test_gradients_are_searched_from_the_end():
    model = network(nn.ReLU())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model[0].weight.grad[0, 0] = model[2].weight.grad[0, 0] = float("nan")
    assert "the gradient of 2.weight (nan), while the forward pass is finite" in message(model)


def test_a_loss_that_spoils_it_alone():
    assert "the loss itself, after the model" in message(network(nn.ReLU()))


def test_hooks_are_taken_away_even_if_the_pass_fails():
    model = network(nn.ReLU())

    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        explain(model, fail, 0, 0.1)
    assert not any(module._forward_hooks for module in model.modules())
