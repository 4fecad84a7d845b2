"""Start of the positions: Eqn 7, a^h = [−1, 2 D_1, 2 D_2], for every number of heads."""

import math
from itertools import pairwise, product

import pytest
import torch

from dynavit.norms import DynamicTokenNorm
from dynavit.norms.dtn.init import head_offsets, local_position

every_count = pytest.mark.parametrize("heads", range(1, 26))
both_ways = pytest.mark.parametrize("offsets", ["centred", "integer"])


@every_count
@both_ways
@pytest.mark.parametrize("ndim", [1, 2])
def test_every_head_has_an_offset_of_its_own(heads, offsets, ndim):
    """[−1, 2 D] for H different offsets D, and the layer starts there."""
    where = head_offsets(heads, ndim, offsets)
    assert len(set(where)) == len(where) == heads
    position = local_position(heads, ndim, offsets)
    assert torch.equal(position, torch.tensor([[-1.0, *(2 * step for step in offset)] for offset in where]))
    assert torch.equal(DynamicTokenNorm(heads, heads=heads, ndim=ndim, offsets=offsets).position, position)


@both_ways
@pytest.mark.parametrize("side", [1, 3, 5])
def test_odd_squares_are_the_centred_window(side, offsets):
    """√H x √H offsets around the token in row-major order."""
    steps = [float(step) for step in range(-(side // 2), side // 2 + 1)]
    assert head_offsets(side**2, 2, offsets) == list(product(steps, steps))


@pytest.mark.parametrize("side", [2, 4])
def test_even_squares(side):
    """Centred: half-integer offsets; integer: half a step to the top left."""
    steps = [step - (side - 1) / 2 for step in range(side)]
    assert head_offsets(side**2, 2, "centred") == list(product(steps, steps))
    steps = [float(step - side // 2) for step in range(side)]
    assert head_offsets(side**2, 2, "integer") == list(product(steps, steps))


@every_count
@both_ways
def test_other_counts_take_the_nearest_places_of_the_next_square(heads, offsets):
    """In the window's order; no place left out is nearer to the token than one taken."""
    side = math.ceil(math.sqrt(heads))
    window, where = head_offsets(side**2, 2, offsets), head_offsets(heads, 2, offsets)
    places = [window.index(offset) for offset in where]
    assert all(a < b for a, b in pairwise(places))
    left_out = [math.hypot(*offset) for offset in window if offset not in where]
    assert not left_out or max(math.hypot(*offset) for offset in where) <= min(left_out)


def test_named_shapes():
    """H = 5 is a plus sign, H = 12 a 4 x 4 square without its corners."""
    assert set(head_offsets(5)) == {(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)}
    corners = set(product((-1.5, 1.5), repeat=2))
    assert set(head_offsets(12)) == set(head_offsets(16)) - corners


@every_count
def test_sequences_have_a_centred_window(heads):
    """D_h = h − (H − 1)/2; as integers −H/2 … H/2 − 1 for even H."""
    assert head_offsets(heads, 1) == [(h - (heads - 1) / 2,) for h in range(heads)]
    assert head_offsets(heads, 1, "integer") == [(float(h - heads // 2),) for h in range(heads)]


@pytest.mark.parametrize("heads", [1, 5, 9, 25])
def test_the_largest_weight_lies_at_the_offset(heads):
    """dx counts columns, dy rows: head h of the token in the middle looks most at its own neighbour."""
    norm = DynamicTokenNorm(heads, heads=heads)
    P = norm.positional_weights((9, 11), 4 * 11 + 5)
    for (dx, dy), weights in zip(head_offsets(heads), P, strict=True):
        assert divmod(int(weights.argmax()), 11) == (4 + dy, 5 + dx)
        assert abs(weights.sum() - 1) < 1e-12


@pytest.mark.parametrize(("offsets", "largest"), [("centred", 4), ("integer", 1)])
def test_even_windows_have_four_equal_maxima_or_one(offsets, largest):
    """The two values of `offsets`, for H = 4."""
    P = DynamicTokenNorm(4, heads=4, offsets=offsets).positional_weights((9, 9), 40)
    assert all(int((weights > weights.max() - 1e-9).sum()) == largest for weights in P)
    if offsets == "centred":
        torch.testing.assert_close(P.amax((1, 2)), torch.full((4,), 0.193, dtype=torch.float64), rtol=0, atol=1e-3)


def test_one_dimensional_weights_of_even_windows():
    """Head weights of section 6.1: 0.44, 0.44, 0.06, 0.06 centred; 0.56, 0.21, 0.21, 0.01 at integers."""
    for offsets, expected in (("centred", [0.44, 0.44, 0.06, 0.06]), ("integer", [0.56, 0.21, 0.21, 0.01])):
        P = DynamicTokenNorm(8, heads=8, ndim=1, offsets=offsets).positional_weights((40,), 20)
        top = P.sort(-1, descending=True).values[:, :4]
        torch.testing.assert_close(top, torch.tensor(expected).double().expand(8, 4), rtol=0, atol=6e-3)


def test_trunc_normal_start_is_near_uniform():
    """std 0.02 on 14 x 14: 135 to 167 of 196 tokens count on average in released models."""
    torch.manual_seed(0)
    norm = DynamicTokenNorm(48, heads=48, init="trunc_normal")
    assert 0.01 < norm.position.std() < 0.03
    P = norm.positional_weights((14, 14), 14 * 7 + 7).flatten(1)
    assert (-(P * P.log()).sum(-1)).exp().mean() > 100


def test_reset_parameters_restores_the_start():
    norm = DynamicTokenNorm(18, heads=9)
    start = {key: value.clone() for key, value in norm.state_dict().items()}
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    norm.reset_parameters()
    torch.testing.assert_close(dict(norm.state_dict()), start, rtol=0, atol=0)
