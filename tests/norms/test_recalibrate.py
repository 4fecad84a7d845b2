"""Exact statistics for weights that never saw a training step."""

import copy

import pytest
import torch
from torch import Tensor, nn

from dynavit import recalibrate
from dynavit.norms import create_norm
from norms.test_smoothed import DIM, equal, make, smoothed, state, tokens


def batches(*sizes: int) -> list[Tensor]:
    return list(tokens(5, sum(sizes)).split(sizes))


def model(name: str = "bn") -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.5), create_norm(name, DIM)).double()


@smoothed
def test_statistics_are_those_of_the_whole_data_set(name):
    norm = make(name)
    together = copy.deepcopy(norm)
    recalibrate(norm, batches(2, 1, 4))
    recalibrate(together, batches(7))
    torch.testing.assert_close(norm.state_dict(), together.state_dict())
    assert any(not torch.equal(value, make(name).state_dict()[key]) for key, value in norm.state_dict().items())
    other = copy.deepcopy(together)
    recalibrate(other, batches(7))
    torch.testing.assert_close(other.state_dict(), together.state_dict(), msg="what was there before plays no part")


@pytest.mark.parametrize("name", ["bn", "sn", "repbn", "prepbn"])
def test_moments_are_exact(name):
    norm = recalibrate(make(name), batches(2, 1, 4))
    seen = torch.cat(batches(2, 1, 4)).flatten(0, 1)
    torch.testing.assert_close(norm.running_mean, seen.mean(0))
    torch.testing.assert_close(norm.running_var, seen.var(0))


def test_averaged_weights_get_statistics_of_their_own():
    """Dropout works as at evaluation, and the model comes back in eval."""
    averaged = model().train()
    for x in batches(3, 3):
        averaged(x)
    with torch.no_grad():
        averaged[0].weight.mul_(0.5).add_(0.1)
    assert recalibrate(averaged, batches(2, 5)) is averaged
    assert not any(module.training for module in averaged.modules())
    seen = averaged[0](torch.cat(batches(2, 5))).flatten(0, 1)
    torch.testing.assert_close(averaged[2].running_mean, seen.mean(0))
    torch.testing.assert_close(averaged[2].running_var, seen.var(0))


def test_a_loader_of_tuples_and_the_number_of_batches():
    one, two, three = model(), model(), model()
    recalibrate(one, batches(2, 5)[:1])
    recalibrate(two, ((x, "label") for x in batches(2, 5)), batches=1)
    recalibrate(three, [{"x": x} for x in batches(2, 5)], batches=1, call=lambda model, batch: model(batch["x"]))
    equal((state(two), state(three)), (state(one), state(one)))
    every = recalibrate(model(), batches(*[1] * 201), batches=None)
    torch.testing.assert_close(every[2].running_mean, every[0](tokens(5, 201)).mean((0, 1)))


@smoothed
def test_a_failure_midway_leaves_the_old_state(name):
    norm = make(name)
    before = state(norm)

    def failing():
        yield tokens(0)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        recalibrate(norm, failing())
    equal(state(norm), before)
    assert not norm.training
    # Nothing of it is left for the next step either.
    norm.train().defer_statistics()
    other = make(name)
    other.defer_statistics()
    for one in (norm, other):
        one(tokens(1))
        one.commit_statistics()
    equal(state(norm), state(other))


def test_what_cannot_be_done_is_said():
    with pytest.raises(ValueError, match="no norm with smoothed statistics"):
        recalibrate(nn.Sequential(nn.Linear(2, 2), create_norm("ln", 2)), batches(1))
    norm = make("bn")
    before = state(norm)
    with pytest.raises(ValueError, match="the loader gave no batch"):
        recalibrate(norm, [])
    equal(state(norm), before)


def torch_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.5), nn.Flatten(0, 1), nn.BatchNorm1d(DIM, momentum=0.3)).double()


def test_batch_norms_of_torch_get_the_mean_over_batches():
    model = torch_model()
    recalibrate(model.train(), batches(3, 3))
    seen = model[0](torch.stack(batches(3, 3)).flatten(1, 2))
    torch.testing.assert_close(model[3].running_mean, seen.mean((0, 1)))
    torch.testing.assert_close(model[3].running_var, seen.var(1).mean(0))
    assert model[3].momentum == 0.3 and not any(module.training for module in model.modules())


def test_batch_norms_of_torch_keep_their_statistics_after_a_failure_and_where_nothing_passes():
    model = torch_model().train()
    model(tokens(0))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(AttributeError):
        recalibrate(model, [tokens(1), "no tensor"])
    equal(model.state_dict(), before)
    assert model[3].momentum == 0.3 and not model[3].training
    recalibrate(model, batches(3), call=lambda model, x: model[0](x))
    equal(model.state_dict(), before)
    with pytest.raises(ValueError, match="nn.BatchNorm1d"):
        recalibrate(nn.BatchNorm1d(DIM, track_running_stats=False), batches(3))
