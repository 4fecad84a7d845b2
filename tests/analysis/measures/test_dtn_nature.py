"""DTNs with parameters that make them another norm."""

import math

import pytest
import torch

from dynavit.analysis.measures.dtn_nature import dtn_nature, seen_tokens
from dynavit.norms import DynamicTokenNorm, ReleasedDynamicTokenNorm

GRID = (4, 5)


def assert_shares(found, ln=0.0, whole=0.0, local=0.0):
    assert found == pytest.approx({"ln": ln, "in": whole, "local": local}, abs=1e-7)


def dtn(position=None, **options):
    norm = DynamicTokenNorm(8, heads=2, **options)
    if position is not None:
        with torch.no_grad():
            norm.position.copy_(torch.tensor(position))
    return norm


def test_lambda_1_is_ln():
    nature = dtn_nature(dtn(fixed_mean_lambda=1.0, fixed_var_lambda=1.0), GRID)
    assert_shares(nature["mean"], ln=1)
    assert_shares(nature["variance"], ln=1)
    assert nature["became"] == "LN"


@pytest.mark.parametrize("options", [{"average": "uniform"}, {"position": [0.0, 0, 0]}])
def test_lambda_0_and_equal_weights_is_in(options):
    nature = dtn_nature(dtn(fixed_mean_lambda=0.0, fixed_var_lambda=0.0, **options), GRID)
    assert_shares(nature["mean"], whole=1)
    assert nature["became"] == "IN"


def test_lambda_0_and_sharp_weights_is_local():
    nature = dtn_nature(dtn([-50.0, 0, 0], fixed_mean_lambda=0.0, fixed_var_lambda=0.0), GRID)
    assert_shares(nature["variance"], local=1)
    assert nature["became"] == "local IN"


def test_heads_are_averaged_and_mean_and_variance_are_apart():
    norm = dtn([[0.0, 0, 0], [-50.0, 0, 0]], fixed_var_lambda=1.0)
    with torch.no_grad():
        norm.mean_logit.copy_(torch.tensor([0.75, 0.25]).logit())
    nature = dtn_nature(norm, GRID)
    assert_shares(nature["mean"], ln=0.5, whole=0.125, local=0.375)
    assert_shares(nature["variance"], ln=1)
    assert nature["became"] == "LN"


def test_a_window_sees_its_tokens():
    # On an axis of n tokens, a window of radius 1 sees 2 at both ends and 3 elsewhere.
    expected = (2 * 2 + 2 * 3) / 4 * (2 * 2 + 3 * 3) / 5
    assert seen_tokens(dtn(average="window"), GRID).tolist() == pytest.approx([expected] * 2)
    nature = dtn_nature(dtn(average="window", fixed_mean_lambda=0.5), GRID)
    assert nature["mean"]["in"] == pytest.approx(0.5 * (expected - 1) / 19)


def test_factors_of_p_give_the_entropy_of_p():
    norm = dtn([[-0.2, 0.3, -0.1], [0.05, -0.4, 0.2]], num_prefix_tokens=1)
    rows = torch.stack([norm.positional_weights(GRID, token).flatten(1) for token in range(20)], 1)
    whole = torch.special.entr(rows).sum(-1).exp().mean(-1)
    torch.testing.assert_close(seen_tokens(norm, GRID), whole)


def test_released_cells_count_all_their_tokens():
    norm = ReleasedDynamicTokenNorm(8, heads=2, pool=2)
    rows = torch.stack([norm.positional_weights((4, 6), token).flatten(1) for token in range(24)], 1)
    torch.testing.assert_close(seen_tokens(norm, (4, 6)), torch.special.entr(rows).sum(-1).exp().mean(-1))
    with torch.no_grad():
        norm.position.zero_()
    assert_shares(dtn_nature(norm, (4, 6))["mean"], ln=0.5, whole=0.5)


def test_one_dimension():
    norm = DynamicTokenNorm(8, heads=2, ndim=1, fixed_mean_lambda=0.0)
    rows = torch.stack([norm.positional_weights((20,), token) for token in range(20)], 1)
    torch.testing.assert_close(seen_tokens(norm, (20,)), torch.special.entr(rows).sum(-1).exp().mean(-1))
    assert sum(dtn_nature(norm, (20,))["mean"].values()) == pytest.approx(1)
    uniform = DynamicTokenNorm(8, heads=2, ndim=1, average="uniform", fixed_mean_lambda=0.0, fixed_var_lambda=0.0)
    assert dtn_nature(uniform, (20,))["became"] == "IN"


def test_one_token_is_the_whole_image():
    assert_shares(dtn_nature(dtn(fixed_mean_lambda=0.0), (1, 1))["mean"], whole=1)
    assert math.isfinite(dtn_nature(dtn(), (1, 1))["variance"]["local"])
