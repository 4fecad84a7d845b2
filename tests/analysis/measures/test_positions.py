"""Positional weights of one token."""

import pytest
import torch

from dynavit.analysis.measures.positions import initial_matrices, positional_matrices
from dynavit.norms import DynamicTokenNorm, ReleasedDynamicTokenNorm

GRID, TOKEN = (5, 6), 2 * 6 + 3


def trained(**options):
    norm = DynamicTokenNorm(18, heads=9, num_prefix_tokens=1, **options)
    with torch.no_grad():
        norm.position.copy_(torch.tensor([-3.0, 6.0, 0.0]))  # the right neighbour, in every head
    return norm


def test_a_trained_norm_shows_where_it_looks():
    matrices = positional_matrices(trained(), GRID, TOKEN)
    assert matrices.shape == (9, 5, 6)
    torch.testing.assert_close(matrices.sum((1, 2)), torch.ones(9).double())
    assert matrices.flatten(1).argmax(1).tolist() == [TOKEN + 1] * 9


@pytest.mark.parametrize("offset", [-1, 30])
def test_tokens_that_do_not_exist(offset):
    with pytest.raises(ValueError, match=rf"no token {offset} on a grid of 5x6: it has 30"):
        positional_matrices(trained(), GRID, offset)


def test_local_heads_start_at_their_own_neighbours():
    matrices = initial_matrices(trained(), GRID, TOKEN, "local")
    neighbours = {TOKEN + 6 * dy + dx for dy in (-1, 0, 1) for dx in (-1, 0, 1)}
    assert set(matrices.flatten(1).argmax(1).tolist()) == neighbours


def test_truncated_normal_weights_are_wide_and_come_from_their_seed():
    norm, before = trained(), torch.get_rng_state()
    first, again, other = (initial_matrices(norm, GRID, TOKEN, "trunc_normal", seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.max() < 0.2
    assert torch.equal(torch.get_rng_state(), before)


def test_the_norm_itself_is_left_alone():
    norm = trained()
    expected = {name: value.clone() for name, value in norm.state_dict().items()}
    initial_matrices(norm, GRID, TOKEN, "local")
    assert all(torch.equal(value, expected[name]) for name, value in norm.state_dict().items())
    assert norm.init == "local"


def test_options_that_shape_p_are_kept():
    fresh = DynamicTokenNorm(8, heads=4, offsets="integer", radius=1)
    torch.testing.assert_close(initial_matrices(fresh, GRID, TOKEN, "local"), positional_matrices(fresh, GRID, TOKEN))
    pooled = ReleasedDynamicTokenNorm(8, heads=4, pool=2)
    torch.testing.assert_close(initial_matrices(pooled, (4, 6), 7, "local"), positional_matrices(pooled, (4, 6), 7))
    line = DynamicTokenNorm(8, heads=4, ndim=1, kernel="band", radius=3)
    torch.testing.assert_close(initial_matrices(line, (12,), 5, "local"), positional_matrices(line, (12,), 5))
