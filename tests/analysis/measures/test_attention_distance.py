"""Attention whose distance is known in closed form."""

import math

import pytest
import torch

from dynavit.analysis.measures.attention_distance import local_heads, mean_attention_distance, uniform_distance

NAN = math.nan


def places(rows, cols):
    """(1, rows * cols, 2)"""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(cols)).double()[None]


def distance(matrix, queries, keys=None):
    """Of one image with one head: (w, q, k) -> a number."""
    keys = queries if keys is None else keys
    return float(mean_attention_distance(matrix[None, :, None], queries, keys))


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (3, 5)])
def test_uniform_attention_looks_at_the_uniform_distance(grid):
    tokens = math.prod(grid)
    assert distance(torch.full((1, tokens, tokens), 1 / tokens), places(*grid)) == pytest.approx(uniform_distance(grid))


def test_uniform_distances_by_hand():
    assert uniform_distance((1, 1)) == 0
    assert uniform_distance((2, 1)) == uniform_distance((1, 2)) == 0.5
    assert uniform_distance((2, 2)) == pytest.approx((0 + 1 + 1 + math.sqrt(2)) / 4)
    assert uniform_distance((1, 3)) == pytest.approx(8 / 9)
    # Two random points of the unit square are (2 + sqrt(2) + 5 asinh(1)) / 15 apart on average.
    assert uniform_distance((60, 60)) / 60 == pytest.approx((2 + math.sqrt(2) + 5 * math.asinh(1)) / 15, rel=1e-3)


def test_a_token_that_looks_at_itself_looks_nowhere():
    assert distance(torch.eye(12)[None], places(3, 4)) == 0


def test_a_look_at_the_right_neighbour_is_one_patch_far():
    to_the_right = torch.eye(12).roll(1, dims=1)
    keys = places(3, 4) + torch.tensor([0.0, 1.0])
    assert distance(torch.eye(12)[None], places(3, 4), keys) == 1
    # On the grid itself the last column wraps around to the next row's first, and the last token to the first one.
    expected = (9 * 1 + 2 * math.hypot(1, 3) + math.hypot(2, 3)) / 12
    assert distance(to_the_right[None], places(3, 4)) == pytest.approx(expected)


def test_the_class_token_is_left_out_as_query_and_as_key():
    queries = torch.tensor([[[NAN, NAN], [0, 0], [0, 2]]])
    weights = torch.tensor([[[0.2, 0.3, 0.5], [0.5, 0.4, 0.1], [0.0, 0.75, 0.25]]])
    # Rows without their first column: (0.4, 0.1) / 0.5 looks 2 * 0.2 far, (0.75, 0.25) looks 2 * 0.75 far.
    assert distance(weights, queries) == pytest.approx((0.4 + 1.5) / 2)


def test_a_row_that_sees_only_the_class_token_does_not_count():
    queries = torch.tensor([[[NAN, NAN], [0, 0], [0, 2]]])
    weights = torch.tensor([[[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.75, 0.25]]])
    assert distance(weights, queries) == pytest.approx(1.5)
    weights[:, 2] = weights[:, 1]
    assert math.isnan(distance(weights, queries))


def test_windows_count_their_real_queries():
    # Window 0 is full; window 1 has one real token and padding, which takes half of its attention.
    queries = torch.tensor([[[0, 0], [0, 1]], [[0, 2], [NAN, NAN]]])
    weights = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]])
    assert distance(weights, queries) == pytest.approx((1 + 1 + 0) / 3)


def test_reduced_keys_have_their_own_places_and_number():
    keys = torch.tensor([[[0.5, 0.5]]])
    assert distance(torch.ones(1, 4, 1), places(2, 2), keys) == pytest.approx(math.sqrt(0.5))


def test_images_and_heads_stay_apart():
    eye, uniform = torch.eye(4), torch.full((4, 4), 0.25)
    weights = torch.stack([torch.stack([eye, uniform]), torch.stack([uniform, eye])])[:, None]
    u = uniform_distance((2, 2))
    found = mean_attention_distance(weights, places(2, 2), places(2, 2))
    torch.testing.assert_close(found, torch.tensor([[0.0, u], [u, 0.0]], dtype=torch.float64))


def test_local_heads_look_less_than_half_as_far_as_uniform_ones():
    assert local_heads(torch.tensor([0.9, 1.0, 2.5]), uniform=2.0).tolist() == [True, False, False]
