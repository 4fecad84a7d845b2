"""Shares of a mixture that start at an end of it: kept in [0, 1] wherever they live, and read from older weights."""

import copy

import pytest
import torch
from torch import nn

import dynavit

NORMS = {"dtn": ("share", 1.0), "sn": ("rest", 0.0)}


def started(name, **options):
    norm = dynavit.create_norm(name, 8, heads=2, dtype=torch.float64, **options)
    with torch.no_grad():
        norm.start_at(1.0)
    return norm.train()


def shares(norm):
    named = dict(norm.named_parameters())
    return {key: named[key] for key in norm.mixing_parameters if key != "position"}


def step_outwards(model, optimiser, steps=6):
    """Steps of a loss that would have more of LayerNorm than all of it."""
    generator = torch.Generator().manual_seed(1)
    x, target = (torch.randn(4, 9, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    for _ in range(steps):
        optimiser.zero_grad()
        (model(x) - target).square().mean().mul(-0.3).backward()
        optimiser.step()
        for module in model.modules():
            if hasattr(module, "commit_statistics"):
                module.commit_statistics()


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("learns", "then"), [(True, [1.0, 0.0]), (False, [1.5, -0.5])])  # frozen ones are not ours to change
def test_a_step_that_led_out_is_undone_by_commit(name, learns, then):
    norm = started(name).requires_grad_(learns)
    assert list(shares(norm)) == [f"mean_{NORMS[name][0]}", f"var_{NORMS[name][0]}"]
    assert all((share == NORMS[name][1]).all() for share in shares(norm).values())
    with torch.no_grad():
        for share in shares(norm).values():
            share.copy_(torch.tensor([1.5, -0.5]))
    norm.commit_statistics()
    assert all(share.tolist() == then for share in shares(norm).values())


@pytest.mark.parametrize("name", NORMS)
def test_linear_shares_are_an_option_and_begin_as_the_logits_do(name):
    x = torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logit, linear = (dynavit.create_norm(name, 8, heads=2, dtype=torch.float64, shares=kind) for kind in ("logit", "linear"))
    assert (logit.can_be_exact, linear.can_be_exact) == (False, True)
    assert torch.allclose(logit(x), linear(x), rtol=0, atol=1e-12)
    assert {key.rpartition("_")[2] for key in shares(linear)} == {NORMS[name][0]}
    with pytest.raises(ValueError, match="shares"):
        dynavit.create_norm(name, 8, heads=2, shares="both")


@pytest.mark.parametrize("name", NORMS)
def test_weights_of_the_frozen_start_become_shares(name):
    """An exact start used to be logits of 40 (sn: 80) and, once unfrozen, logits near 0.98; plans of then say "identity"."""
    norm, old = started(name), dynavit.create_norm(name, 8, heads=2, dtype=torch.float64)
    first = 80.0 if name == "sn" else 40.0
    logits = {"sn": [first, 0.0, 0.0], "dtn": [first, 3.9]}[name]
    with torch.no_grad():
        for logit in (old.mean_logit, old.var_logit):
            logit.copy_(torch.tensor(logits))
    norm.load_state_dict(old.state_dict())
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(norm.eval()(x), old.eval()(x), rtol=1e-12, atol=1e-12)
    with pytest.raises(RuntimeError, match=f"mean_{NORMS[name][0]}"):  # the other way round it is said, not guessed
        old.load_state_dict(norm.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMS)
def test_shards_stay_in_range_as_the_whole_does(name, tmp_path):
    """A forward call under fully_shard sees a copy: what it sets back there is lost."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole = nn.Sequential(nn.Linear(8, 8, dtype=torch.float64), started(name), nn.GELU())
    spread = copy.deepcopy(whole)
    init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        fully_shard(spread, mesh=init_device_mesh("cpu", (1,)))
        for model in (whole, spread):
            step_outwards(model, torch.optim.SGD(model.parameters(), lr=0.3))
        for key, share in shares(whole[1]).items():
            assert share.min() >= 0 and share.max() <= 1
            torch.testing.assert_close(shares(spread[1])[key].full_tensor(), share, rtol=1e-12, atol=1e-12)
    finally:
        destroy_process_group()
