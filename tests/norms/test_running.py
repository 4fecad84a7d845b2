"""Running statistics of `bn` and `sn`, and the parts that `sn` mixes."""

import pytest
import torch
from torch import nn

from dynavit.norms import create_norm


def batches(count: int = 3):
    noise = torch.Generator().manual_seed(0)
    return [torch.randn(3, 5, 6, generator=noise, dtype=torch.float64) * (1 + i) + i for i in range(count)]


@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_torch_has_the_same_batch_norm(momentum):
    ours = create_norm("bn", 6, momentum=momentum, dtype=torch.float64)
    theirs = nn.BatchNorm1d(6, momentum=momentum, dtype=torch.float64)
    for x in batches():
        torch.testing.assert_close(ours(x), theirs(x.mT).mT)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    x = batches()[0]
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.mT).mT)


def test_switchable_norm_remembers_what_batch_norm_does():
    sn, bn = create_norm("sn", 6, dtype=torch.float64), create_norm("bn", 6, dtype=torch.float64)
    for x in batches():
        sn(x), bn(x)
    torch.testing.assert_close((sn.running_mean, sn.running_var), (bn.running_mean, bn.running_var))
    # All weight on the third source: evaluation is batch norm at evaluation.
    with torch.no_grad():
        sn.mean_logit.copy_(torch.tensor([-99.0, -99.0, 99.0]))
        sn.var_logit.copy_(sn.mean_logit)
    x = batches()[0]
    torch.testing.assert_close(sn.eval()(x), bn.eval()(x))


@pytest.mark.parametrize(("source", "name"), [(0, "ln"), (1, "in"), (2, "bn")])
def test_switchable_norm_holds_its_three_parts(source, name):
    sn, part = create_norm("sn", 6, dtype=torch.float64), create_norm(name, 6, dtype=torch.float64)
    with torch.no_grad():
        for logit in (sn.mean_logit, sn.var_logit):
            logit.fill_(-99.0)[source] = 99.0
    x = batches()[1]
    torch.testing.assert_close(sn(x), part(x))


def test_switchable_norm_logs_its_weights():
    sn = create_norm("sn", 6)
    with torch.no_grad():
        sn.var_logit.copy_(torch.tensor([0.5, 0.25, 0.25]).log())
    found = sn.scalars()
    assert found.pop("skipped_steps") == 0
    assert list(found) == ["mean_ln", "mean_in", "mean_bn", "var_ln", "var_in", "var_bn"]
    assert list(found.values()) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.5, 0.25, 0.25])


@pytest.mark.parametrize("name", ["bn", "sn"])
def test_padding_is_not_remembered(name):
    x, mask = batches()[1], torch.rand(3, 5, generator=torch.Generator().manual_seed(1)) > 0.4
    norm, bag = create_norm(name, 6, dtype=torch.float64), create_norm("bn", 6, dtype=torch.float64)
    norm(x.masked_fill(~mask[..., None], float("nan")), mask=mask)
    bag(x[mask][None])
    torch.testing.assert_close((norm.running_mean, norm.running_var), (bag.running_mean, bag.running_var))


@pytest.mark.parametrize("name", ["bn", "sn"])
def test_one_token_says_nothing_about_variance(name):
    norm = create_norm(name, 6)
    norm(torch.full((1, 1, 6), 5.0))
    torch.testing.assert_close(norm.running_mean, torch.full((6,), 0.5))
    torch.testing.assert_close(norm.running_var, torch.ones(6))


@pytest.mark.parametrize("name", ["bn", "sn"])
def test_momentum_is_checked(name):
    with pytest.raises(ValueError, match="between 0 and 1; got 9"):
        create_norm(name, 6, momentum=9)
