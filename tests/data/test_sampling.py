"""The samples of each step, and their random numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynavit.data.sampling import derive_seed, epoch_draws, step_parts, steps_in, uniform

MASK = (1 << 64) - 1


def splitmix(x: int) -> int:
    """SplitMix64 in Python's unbounded integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def plain_seed(*keys: int) -> int:
    mixed = 0
    for key in keys:
        mixed = splitmix(mixed ^ splitmix(key & MASK))
    return mixed & (MASK >> 1)


@pytest.mark.parametrize("keys", [(0,), (0, 0), (3, 1), (-1, 2), (2**62, 7, 0)])
def test_derived_seeds_are_splitmix(keys):
    assert derive_seed(*keys) == plain_seed(*keys)


def test_seeds_depend_on_every_key_and_their_order():
    seeds = {derive_seed(*keys) for keys in [(0,), (0, 0), (0, 1), (1, 0), (1,), (1, 1), (0, 0, 0)]}
    assert len(seeds) == 7


def test_uniform_numbers_are_those_of_the_formula():
    found = uniform(5, 2, torch.tensor([0, 7, 10**12]), 3)
    for i, draw in enumerate([0, 7, 10**12]):
        for k in range(3):
            expected = splitmix(splitmix(draw ^ plain_seed(5, 2)) ^ (k + 1)) >> 11
            assert found[i, k].item() == expected / 2**53
    assert found.dtype == torch.float64


def test_uniform_numbers_are_uniform_and_unrelated():
    numbers = uniform(0, 0, torch.arange(20_000), 4)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert (numbers.mean(0) - 0.5).abs().max() < 0.01
    assert (numbers.var(0) - 1 / 12).abs().max() < 0.005
    between = torch.corrcoef(torch.cat([numbers, numbers.roll(1, 0), uniform(1, 0, torch.arange(20_000), 4)], 1).T)
    assert (between - torch.eye(12)).abs().max() < 0.04


def test_an_epoch_visits_every_sample_once_and_epochs_differ():
    first, second = epoch_draws(101, 0, 0), epoch_draws(101, 0, 1)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(101))
    assert first.tolist() != second.tolist()
    assert torch.equal(first, epoch_draws(101, 0, 0))


def test_repeats_draw_fewer_samples_more_often_as_neighbours():
    draws = epoch_draws(100, 0, 0, repeats=3)
    assert len(draws) == len(draws.unique()) == 100
    samples = draws % 100
    assert len(samples.unique()) == 34  # ceil(100 / 3)
    triples = samples[:99].view(33, 3)
    assert (triples == triples[:, :1]).all()
    assert (draws[:99].view(33, 3) // 100 == torch.arange(3)).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(samples=st.integers(1, 50), batch=st.integers(1, 20), world=st.integers(1, 4), accumulate=st.integers(1, 3))
def test_parts_make_up_the_batch_in_order(samples, batch, world, accumulate):
    draws = epoch_draws(samples, 0, 0)
    seen = []
    for step in range(steps_in(samples, batch)):
        ranks = [step_parts(draws, batch, step, rank, world, accumulate) for rank in range(world)]
        parts = [part for micro_batch in zip(*ranks, strict=True) for part in micro_batch]
        assert len(parts) == world * accumulate
        assert all(len(part.draws) == max(part.count, 1) for part in parts)  # one borrowed sample where none is left
        counts = [part.count for part in parts]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == parts[0].step_count == parts[-1].step_count
        seen += [draw for part in parts for draw in part.draws[: part.count].tolist()]
    assert seen == draws.tolist()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(samples=st.integers(1, 50), batch=st.integers(1, 20), world=st.integers(2, 4), accumulate=st.integers(1, 3))
def test_processes_share_the_micro_batches_of_one(samples, batch, world, accumulate):
    """Norms with batch statistics normalise one micro-batch of all processes at a time: these are always the same samples."""
    draws = epoch_draws(samples, 0, 0)
    for step in range(steps_in(samples, batch)):
        ranks = [step_parts(draws, batch, step, rank, world, accumulate) for rank in range(world)]
        for alone, *shares in zip(step_parts(draws, batch, step, accumulate=accumulate), *ranks, strict=True):
            together = torch.cat([share.draws[: share.count] for share in shares])
            assert together.tolist() == alone.draws[: alone.count].tolist()
