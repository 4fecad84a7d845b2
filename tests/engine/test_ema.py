"""The average of weights against the formula in float64."""

import pytest
import torch
from torch import nn

from dynavit.engine.config import EmaConfig
from dynavit.engine.ema import Ema


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()


def change(network, number):
    generator = torch.Generator().manual_seed(number)
    network(torch.randn(6, 3, generator=generator, dtype=torch.float64))  # moves the running statistics
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("warmup", [True, False])
def test_average_is_the_formula(warmup):
    network = model()
    ema = Ema(network, EmaConfig(decay=0.6, warmup=warmup))
    expected = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for n in range(12):
        change(network, n)
        ema.update()
        decay = min(0.6, (1 + n) / (10 + n)) if warmup else 0.6
        for name, tensor in network.state_dict().items():
            floating = tensor.is_floating_point()
            expected[name] = decay * expected[name] + (1 - decay) * tensor if floating else tensor.clone()
    assert ema.updates == 12
    for name, tensor in ema.state().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-13)
    assert int(ema.state()["1.num_batches_tracked"]) == 12


def test_applied_lends_the_average_and_gives_the_weights_back_bit_for_bit():
    network = model()
    ema = Ema(network, EmaConfig(decay=0.9))
    change(network, 0)
    ema.update()
    own = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def look():
        with ema.applied():
            for name, tensor in network.state_dict().items():
                assert torch.equal(tensor, ema.state()[name])
            raise RuntimeError("evaluation failed")

    with pytest.raises(RuntimeError, match="evaluation failed"):
        look()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, own[name])
    assert not torch.equal(own["0.weight"], ema.state()["0.weight"])


def test_stored_and_loaded_it_goes_on_bit_for_bit():
    one, two = model(), model()
    straight, before = Ema(one, EmaConfig(decay=0.95)), Ema(two, EmaConfig(decay=0.95))
    for n in range(4):
        change(one, n)
        straight.update()
    for n in range(2):
        change(two, n)
        before.update()
    after = Ema(two, EmaConfig(decay=0.95))
    after.load(before.state(), before.updates)
    for n in range(2, 4):
        change(two, n)
        after.update()
    for name, tensor in straight.state().items():
        assert torch.equal(tensor, after.state()[name]), name


@pytest.mark.parametrize("decay", [1.0, -0.1, 1.5])
def test_a_decay_that_makes_no_sense_is_refused(decay):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Ema(nn.Linear(1, 1), EmaConfig(decay=decay))
