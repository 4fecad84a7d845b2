"""Directions that were planted."""

import pytest
import torch

from dynavit.analysis.measures.directions import compare_directions


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_planted_direction_is_found():
    # Before, tokens are a common vector e0 and a little of e5, more or less; after, of e5 and a tenth of it of e2.
    along = torch.linspace(-1, 1, 21, dtype=torch.float64)
    before = torch.zeros(21, 8, dtype=torch.float64)
    before[:, 0] = 10.0
    after = before.clone()
    before[:, 5] = along
    after[:, 5], after[:, 2] = 2 * along, 0.2 * along.square()
    plane = compare_directions(before, after)
    assert plane.explained_before[0] > 0.99 and plane.explained_after[0] > 0.98
    # The first axis is e5, pointing up.
    assert (plane.before[:, 0].diff() > 0).all() and (plane.after[:, 0].diff() > 0).all()
    torch.testing.assert_close(plane.before[:, 0], before[:, 5] / before.norm(dim=1), rtol=0, atol=1e-3)


def test_length_does_not_matter():
    before, after = noise(30, 6), noise(30, 6).flip(0)
    plane, scaled = compare_directions(before, after), compare_directions(before * 7, after * torch.arange(1, 31)[:, None])
    torch.testing.assert_close(plane.before, scaled.before)
    torch.testing.assert_close(plane.after, scaled.after)


def test_axes_belong_to_both_and_coordinates_start_at_the_joint_mean():
    before, after = noise(50, 5), noise(50, 5) + 3
    plane = compare_directions(before, after)
    torch.testing.assert_close(torch.cat([plane.before, plane.after]).mean(0), torch.zeros(2).double())
    swapped = compare_directions(after, before)
    torch.testing.assert_close(swapped.after, plane.before)
    torch.testing.assert_close(swapped.explained_after, plane.explained_before)


def test_in_two_dimensions_the_plane_explains_everything():
    plane = compare_directions(noise(40, 2), noise(40, 2) + 1)
    assert float(plane.explained_before.sum()) == pytest.approx(1)
    assert float(plane.explained_after.sum()) == pytest.approx(1)


def test_spread_is_0_for_one_direction_and_1_where_directions_cancel():
    same = torch.ones(6, 4) * torch.arange(1, 7)[:, None]
    plane = compare_directions(same, torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]).repeat(3, 1))
    assert plane.spread_before == pytest.approx(0, abs=1e-12)
    assert plane.spread_after == pytest.approx(1)
    assert float(plane.explained_after.sum()) == pytest.approx(1)
    assert plane.explained_before.tolist() == [0.0, 0.0]
