"""Up-sampling as a matrix: the released fractions, and the operations it stands for."""

import json
import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dynavit.models.cascade import upsample
from dynavit.models.cascade.upsample import Upsample, axis_weights


def test_the_released_fractions(shared_golden):
    for name, rows in json.loads((shared_golden / "dvt" / "upsample_1d.json").read_text()).items():
        old, new = map(int, name.split("->"))
        ours = [[row.get(at, Fraction(0)) for at in range(old)] for row in axis_weights(old, new)]
        assert ours == [[Fraction(weight) for weight in row] for row in rows]


@given(st.integers(1, 12), st.integers(1, 40))
def test_rows_average_at_most_two_neighbours_and_are_symmetric(old, new):
    rows = axis_weights(old, new)
    assert all(sum(row.values()) == 1 for row in rows)
    if new >= old:
        assert all(len(row) <= 2 and max(row) - min(row) <= 1 for row in rows)
    assert rows[::-1] == [{old - 1 - at: weight for at, weight in reversed(row.items())} for row in rows]


def plainly(image, new):
    """(b, c, rows, cols): nearest neighbours to a multiple of each axis, then adaptive pooling."""
    for axis in (2, 3):
        image = image.repeat_interleave(math.ceil(new[axis - 2] / image.shape[axis]), axis)
    return F.adaptive_avg_pool2d(image, new)


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 2), st.tuples(*[st.integers(1, 13)] * 2), st.integers(0, 2**31))
def test_tokens_and_pairs_of_tokens(old, new, seed):
    generator = torch.Generator().manual_seed(seed)
    n, m = math.prod(old), math.prod(new)
    x = torch.randn(2, 1 + n, 3, generator=generator, dtype=torch.float64)
    image = plainly(x[:, 1:].transpose(1, 2).unflatten(2, old), new)
    y = Upsample(old, new)(x).rows(x)
    torch.testing.assert_close(y[:, 1:], image.flatten(2).transpose(1, 2))
    assert torch.equal(y[:, 0], x[:, 0])

    c = torch.randn(2, 1 + n, 1 + n, generator=generator, dtype=torch.float64)
    keys = torch.cat([c[..., :1], plainly(c[..., 1:].unflatten(2, old), new).flatten(2)], 2)  # (2, 1 + n, 1 + m)
    queries = plainly(keys[:, 1:].transpose(1, 2).unflatten(2, old), new).flatten(2).transpose(1, 2)
    torch.testing.assert_close(Upsample(old, new)(c).pairs(c), torch.cat([keys[:, :1], queries], 1))
    assert queries.shape == (2, m, 1 + m)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_picking_rows_equals_the_dense_product_with_its_gradients(monkeypatch, dtype):
    torch.manual_seed(0)
    x, g = torch.randn(2, 3, 31, 7, dtype=dtype), torch.randn(2, 3, 71, 7, dtype=dtype)
    found = []
    for few in (0, 1000):
        monkeypatch.setattr(upsample, "FEW_TOKENS", few)
        leaf = x.clone().requires_grad_()
        y = Upsample((5, 6), (7, 10))(leaf).rows(leaf)
        found.append((y, *torch.autograd.grad(y, leaf, g)))
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    for picked, dense in zip(*found, strict=True):
        torch.testing.assert_close(picked, dense, rtol=tolerance, atol=tolerance)
    assert found[0][0].dtype == dtype


@pytest.mark.parametrize("at_hand", [0, 10**6])
def test_pairs_by_picking_equal_the_dense_product_with_their_gradients(monkeypatch, at_hand):
    """Both sides picked, or one of them: E c E^T."""
    monkeypatch.setattr(upsample, "FEW_TOKENS", 0)
    monkeypatch.setattr(upsample, "AT_HAND", at_hand)
    torch.manual_seed(0)
    c = torch.randn(2, 3, 31, 31, dtype=torch.float64, requires_grad=True)
    tokens = Upsample((5, 6), (7, 10))(c)
    plain = tokens.matrix @ c @ tokens.matrix.T
    torch.testing.assert_close(tokens.pairs(c), plain)
    g = torch.randn_like(plain)
    torch.testing.assert_close(torch.autograd.grad(tokens.pairs(c), c, g), torch.autograd.grad(plain, c, g))


@pytest.mark.parametrize("few", [0, 1000])
def test_patches_have_nothing_of_the_class_token(monkeypatch, few):
    monkeypatch.setattr(upsample, "FEW_TOKENS", few)
    x = torch.randn(2, 31, 7, dtype=torch.float64)
    tokens = Upsample((5, 6), (7, 10))(x)
    found = tokens.patches.rows(x)
    assert not found[:, 0].any()
    torch.testing.assert_close(found[:, 1:], tokens.rows(x)[:, 1:])
    assert torch.equal(tokens.patches.rows(x), found)  # tables that were made before


def test_the_map_is_exact_after_any_change_of_precision():
    ours = Upsample((2, 2), (3, 3)).half().double()(torch.zeros(1, dtype=torch.float64)).matrix
    third = Upsample((7, 7), (10, 10)).float().double()(torch.zeros(1, dtype=torch.float64)).matrix
    assert ours[1].tolist() == [0, 1, 0, 0, 0]
    assert 1 / 3 in third.unique().tolist()


def test_a_map_built_without_memory_can_be_filled():
    with torch.device("meta"):
        up = Upsample((2, 3), (4, 4))
    up = up.to_empty(device="cpu")
    up.reset_parameters()
    like = torch.zeros(1)
    assert torch.equal(up(like).matrix, Upsample((2, 3), (4, 4))(like).matrix)
    assert not up.state_dict()
