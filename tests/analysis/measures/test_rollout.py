"""Attention over all tokens of an image, and through layers, by hand."""

import math

import pytest
import torch

from dynavit.analysis.measures.rollout import attended, rollout, whole_attention

NAN = math.nan


def places(rows, cols, prefix=0):
    patches = torch.cartesian_prod(torch.arange(rows), torch.arange(cols)).double()
    return torch.cat([torch.full((prefix, 2), NAN).double(), patches])[None]


def random_rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("prefix", [0, 2])
def test_global_attention_is_the_mean_of_its_heads(prefix):
    weights, where = random_rows(2, 1, 3, prefix + 6, prefix + 6), places(2, 3, prefix)
    torch.testing.assert_close(whole_attention(weights, where, where, (2, 3), prefix), weights.mean(2)[:, 0])


def test_windows_are_put_in_their_places():
    # A 2 x 4 grid in two 2 x 2 windows: tokens 0 1 4 5 and 2 3 6 7.
    weights = random_rows(2, 2, 1, 4, 4)
    left = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    where = torch.stack([left, left + torch.tensor([0, 2])]).double()
    expected = torch.zeros(2, 8, 8, dtype=torch.float64)
    for window, tokens in enumerate(([0, 1, 4, 5], [2, 3, 6, 7])):
        for q, i in enumerate(tokens):
            for k, j in enumerate(tokens):
                expected[:, i, j] = weights[:, window, 0, q, k]
    torch.testing.assert_close(whole_attention(weights, where, where, (2, 4), 0), expected)


def test_padding_is_dropped_and_rows_renormalised():
    # Three tokens in two windows of two; the second window ends with padding, and is alone with it.
    where = torch.tensor([[[0, 0], [0, 1]], [[0, 2], [NAN, NAN]]])
    weights = torch.tensor([[[0.25, 0.75], [0.5, 0.5]], [[0.1, 0.9], [0.5, 0.5]]])[None, :, None]
    whole = whole_attention(weights, where, where, (1, 3), 0)
    torch.testing.assert_close(whole, torch.tensor([[[0.25, 0.75, 0], [0.5, 0.5, 0], [0, 0, 1.0]]]).double())


@pytest.mark.parametrize("reduction", [2, 3, 4])
def test_a_reduced_key_shares_its_weight_among_the_tokens_of_its_cell(reduction):
    side, middle = 2 * reduction, (reduction - 1) / 2
    keys = places(2, 2) * reduction + middle
    weights = random_rows(1, 1, 1, side**2, 4)
    whole = whole_attention(weights, places(side, side), keys, (side, side), 0)
    cells = weights[:, 0, 0].unflatten(-1, (2, 2))
    spread = cells.repeat_interleave(reduction, -1).repeat_interleave(reduction, -2) / reduction**2
    torch.testing.assert_close(whole, spread.flatten(2))


def test_a_class_token_that_alone_asks_leaves_the_others_as_they_are():
    weights = torch.tensor([0.5, 0.1, 0.4])[None, None, None, None]
    whole = whole_attention(weights, places(1, 2, 1)[:, :1], places(1, 2, 1), (1, 2), 1)
    torch.testing.assert_close(whole, torch.tensor([[[0.5, 0.1, 0.4], [0, 1, 0], [0, 0, 1]]]).double())


def test_a_row_that_sees_only_padding_stays_itself():
    where = torch.tensor([[[0, 0], [NAN, NAN]], [[0, 1], [NAN, NAN]]])
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5]]).expand(1, 2, 1, 2, 2)
    torch.testing.assert_close(whole_attention(weights, where, where, (1, 2), 0), torch.eye(2).double()[None])


def test_rollout_of_identity_is_identity_and_of_uniform_a_power():
    eye, uniform = torch.eye(5)[None], torch.full((1, 5, 5), 0.2)
    torch.testing.assert_close(rollout([eye] * 3), eye.double())
    # (U + I) / 2 is I along the differences of tokens times 1/2, and I along their mean.
    torch.testing.assert_close(rollout([uniform] * 3), (uniform + (eye - uniform) / 8).double())


def test_rollout_multiplies_the_later_layer_from_the_left():
    first, second = torch.tensor([[[0.0, 1], [0, 1]]]), torch.tensor([[[1.0, 0], [1, 0]]])
    expected = torch.tensor([[1.0, 0], [0.5, 0.5]]) @ torch.tensor([[0.5, 0.5], [0, 1]])
    torch.testing.assert_close(rollout([first, second]), expected.double()[None])


def test_a_class_token_that_comes_late_is_itself_before():
    early, late = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]), torch.tensor([[[0.0, 1, 0], [0, 1, 0], [0, 0, 1]]])
    # Half of the class token is patch 0 as it left the early layer: 3/4 itself, 1/4 its neighbour.
    assert rollout([early, late])[0, 0].tolist() == [0.5, 0.375, 0.125]


def test_attended_is_the_class_tokens_row_or_the_mean():
    attention = torch.tensor([[[0.5, 0.1, 0.4], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]).double()
    torch.testing.assert_close(attended(attention, 1), torch.tensor([[0.2, 0.8]]).double())
    torch.testing.assert_close(attended(attention, 0), torch.tensor([[0.5, 1.1, 1.4]]).double() / 3)
    assert attended(torch.eye(3).double()[None], 1).tolist() == [[0.0, 0.0]]
