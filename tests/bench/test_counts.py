"""Multiply-adds and kept bytes against closed forms."""

from functools import partial

import pytest
import torch
from torch import nn

from dynavit.bench.flops import count_macs
from dynavit.bench.memory import saved_bytes
from dynavit.norms import create_norm


def test_macs_of_a_linear_layer():
    assert count_macs(nn.Linear(5, 7), torch.randn(3, 5)) == 3 * 5 * 7


def test_macs_of_attention_on_cpu():
    """torch's own counter says 0 here: q k^T and the product with v are T^2 D each, per head."""

    class Attention(nn.Module):
        def forward(self, q):
            return nn.functional.scaled_dot_product_attention(q, q, q)

    assert count_macs(Attention(), torch.randn(2, 3, 11, 8)) == 2 * 3 * 2 * 11 * 11 * 8


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("grid", [(14, 14), (4, 9)])
def test_macs_of_dtn_are_the_separable_formula(grid, backend):
    """2 statistics x C x T x (rows + cols), whichever way they are computed."""
    rows, cols = grid
    norm = create_norm("dtn", 32, heads=4, backend=backend)
    assert count_macs(norm, torch.randn(2, rows, cols, 32)) == 2 * 2 * 32 * rows * cols * (rows + cols)


def test_layer_norm_keeps_its_input_and_two_numbers_per_token():
    norm, x = nn.LayerNorm(64), torch.randn(2, 9, 64, requires_grad=True)
    assert saved_bytes(partial(norm, x), norm) == 4 * (2 * 9 * 64 + 2 * 2 * 9)


def test_what_is_kept_twice_counts_once():
    square = nn.Module()
    square.forward = lambda x: x * x
    x = torch.randn(10, requires_grad=True)
    assert saved_bytes(partial(square, x), square) == 40


def test_dtn_keeps_about_as_much_as_layer_norm():
    """The statistics are computed again in the backward pass."""
    x = torch.randn(2, 64, 64, requires_grad=True)
    norm, reference = create_norm("dtn", 64, heads=4), nn.LayerNorm(64)
    assert saved_bytes(partial(norm, x), norm) < 1.2 * saved_bytes(partial(reference, x), reference)
