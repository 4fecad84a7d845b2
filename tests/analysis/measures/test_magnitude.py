"""Lengths of tokens, by hand."""

import torch
import torch.nn.functional as F

from dynavit.analysis.measures.magnitude import coefficient_of_variation, token_magnitudes


def test_each_head_has_the_length_of_its_own_channels():
    tokens = torch.tensor([[[3.0, 4.0, 0.0, 1.0], [0.0, 0.0, 5.0, 12.0], [1.0, 0.0, 0.0, 0.0]]])
    magnitudes = token_magnitudes(tokens, heads=2)
    torch.testing.assert_close(magnitudes, torch.tensor([[[5.0, 0.0, 1.0], [1.0, 13.0, 0.0]]]).double())


def test_variation_is_the_biased_deviation_over_the_mean():
    values = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    torch.testing.assert_close(coefficient_of_variation(values), torch.tensor([0.5, 0.0]).double())


def test_layer_norm_makes_all_tokens_equally_long_but_not_their_heads():
    # |LN(x)|^2 = C var / (var + eps)
    x = 100 * torch.randn(2, 49, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = F.layer_norm(x, (32,), eps=1e-5)
    whole = token_magnitudes(y, heads=1)
    torch.testing.assert_close(whole, torch.full((2, 1, 49), 32**0.5).double(), rtol=1e-6, atol=0)
    assert coefficient_of_variation(whole).max() < 1e-6
    assert coefficient_of_variation(token_magnitudes(y, heads=4)).min() > 0.05
