"""DynamicTokenNorm with parts of it fixed by options, with masks, and in unusual calls (checkpointing, two forwards)."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynavit.norms import DynamicTokenNorm
from norms.dtn_cases import assert_close, choose, expect, layer, run, tokens

EXACT = 1e-11
ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-5}
both_types = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def holes(samples: int, count: int, share: float = 0.4) -> torch.Tensor:
    """A mask with gaps, different for each sample; the first token of the second half is always real."""
    valid = torch.rand(samples, count, generator=torch.Generator().manual_seed(2)) > share
    valid[:, count // 2] = True
    return valid


# -------------------------------------------------------------------------------------------------- ablations


@both_types
@pytest.mark.parametrize("prefix", [0, 1])
def test_lambda_one_is_layer_norm(way, dtype, prefix):
    """Table 5 (a): values and gradients of nn.LayerNorm. P has no influence, so its gradient is zero."""
    norm = layer(35, 5, fixed_mean_lambda=1.0, fixed_var_lambda=1.0, num_prefix_tokens=prefix, dtype=dtype, **way)
    reference = nn.LayerNorm(35, dtype=torch.float64)
    reference.load_state_dict({"weight": norm.weight.double(), "bias": norm.bias.double()})
    x = tokens(3, 28 + prefix, 35, dtype=dtype)
    found = run(norm, x, grid=(4, 7))
    assert not found.pop("position").any()
    assert_close(found, run(reference, x.double()), ROUNDING[dtype])


@both_types
@pytest.mark.parametrize("masked", [False, True])
def test_lambda_zero_with_uniform_p_is_instance_norm(way, dtype, masked):
    """Table 5 (b): mean and biased variance over the (real) tokens of each sample and channel."""
    norm = layer(12, 3, fixed_mean_lambda=0.0, fixed_var_lambda=0.0, average="uniform", dtype=dtype, **way)
    x, valid = tokens(3, 28, 12, dtype=dtype), holes(3, 28) if masked else torch.ones(3, 28, dtype=torch.bool)
    found = run(norm, x, grid=(4, 7), mask=valid if masked else None)

    leaves = [value.detach().double().requires_grad_() for value in (x, norm.weight, norm.bias)]
    each = [nn.functional.instance_norm(sample[keep].T[None])[0].T for sample, keep in zip(leaves[0], valid, strict=True)]
    y = torch.zeros(3, 28, 12, dtype=torch.float64).masked_scatter(valid[..., None], torch.cat(each))
    y = torch.where(valid[..., None], y * leaves[1] + leaves[2], 0.0)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype).double())
    expected = {"y": y.detach(), **{key: leaf.grad for key, leaf in zip(("x", "weight", "bias"), leaves, strict=True)}}
    assert_close(found, expected, ROUNDING[dtype])


@pytest.mark.parametrize("radius", [1, 2, 9])
@pytest.mark.parametrize("masked", [False, True])
def test_window_is_the_box(way, radius, masked):
    """Equal weights over |dx|, |dy| <= radius, renormalised at the border and over real tokens: a local InstanceNorm."""
    norm = layer(9, 3, average="window", radius=radius, **way)
    x, valid = tokens(2, 35, 9), holes(2, 35) if masked else None
    assert_close(run(norm, x, grid=(5, 7), mask=valid), expect(norm, x, (5, 7), valid), EXACT)


def test_window_needs_no_radius():
    """A window without a radius is the 3 x 3 neighbourhood."""
    assert DynamicTokenNorm(8, average="window").radius == 1


@pytest.mark.parametrize("radius", [1, 3])
def test_learned_kernel_with_a_radius(way, radius):
    """`radius` cuts a learned kernel as well: softmax over the window only."""
    norm, x = layer(10, 2, radius=radius, **way), tokens(2, 45, 10)
    assert_close(run(norm, x, grid=(5, 9)), expect(norm, x, (5, 9), radius=radius), EXACT)


def test_uniform_p_with_learned_lambda(way):
    """Table 10, DTN without relative positions."""
    norm, x = layer(10, 2, average="uniform", **way), tokens(2, 24, 10)
    assert_close(run(norm, x, grid=(4, 6)), expect(norm, x, (4, 6)), EXACT)


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_fixed_lambda_with_learned_p(way, lam):
    """Table 5 (c) and (d)."""
    norm, x = layer(10, 2, fixed_mean_lambda=lam, fixed_var_lambda=lam, **way), tokens(2, 24, 10)
    assert_close(run(norm, x, grid=(4, 6)), expect(norm, x, (4, 6)), EXACT)


def test_only_the_variance_is_mixed(way):
    """`only_var` is λ = 1 for the mean alone."""
    norm, x = layer(10, 2, only_var=True, **way), tokens(2, 24, 10)
    found = run(norm, x, grid=(4, 6))
    assert "mean_logit" not in found and found["var_logit"].any()
    assert_close(found, expect(norm, x, (4, 6)), EXACT)
    other = layer(10, 2, fixed_mean_lambda=1.0, **way)
    assert_close(run(other, x, grid=(4, 6)), found, 0.0)


@pytest.mark.parametrize(
    ("options", "absent"),
    [
        ({}, set()),
        ({"fixed_mean_lambda": 0.5}, {"mean_logit"}),
        ({"fixed_var_lambda": 0.5}, {"var_logit"}),
        ({"only_var": True}, {"mean_logit"}),
        ({"average": "uniform"}, {"position"}),
        ({"average": "window"}, {"position"}),
        ({"affine": False}, {"weight", "bias"}),
    ],
    ids=lambda value: str(sorted(value)),
)
def test_what_is_fixed_is_no_parameter(options, absent):
    """The state dict holds exactly what is learned, under names that released weights and optimisers rely on, in this order:
    2C + 5H numbers with everything."""
    norm = DynamicTokenNorm(12, heads=3, **options)
    everything = {"weight": (12,), "bias": (12,), "mean_logit": (3,), "var_logit": (3,), "position": (3, 3)}
    expected = {key: shape for key, shape in everything.items() if key not in absent}
    assert [(key, tuple(value.shape)) for key, value in norm.state_dict().items()] == list(expected.items())
    assert all(getattr(norm, key) is None for key in absent)


def test_lambda_starts_at_one_half():
    norm = DynamicTokenNorm(12, heads=3)
    assert not norm.mean_logit.any() and not norm.var_logit.any()
    assert norm.scalars()["lambda_mean.2"] == norm.scalars()["lambda_var.0"] == 0.5


# ------------------------------------------------------------------------------------------------------ masks


@pytest.mark.parametrize("average", ["learned", "uniform", "window"])
@pytest.mark.parametrize("prefix", [0, 2])
def test_masked_grid_is_each_samples_own_softmax(way, average, prefix):
    """P_ij = m_j exp s_ij / sum_k m_k exp s_ik on a grid with holes; a padded prefix token is padding too."""
    norm = layer(20, 4, average=average, num_prefix_tokens=prefix, **way)
    x, valid = tokens(3, prefix + 35, 20), holes(3, prefix + 35)
    if prefix:
        valid[:, 0], valid[0, 1], valid[1, 1] = True, False, True
    assert_close(run(norm, x, grid=(5, 7), mask=valid), expect(norm, x, (5, 7), valid), EXACT)


def test_masks_of_rectangles_equal_smaller_grids(way):
    """Images of different size in one batch: each sample as if it were alone on its own grid."""
    norm, x = layer(20, 4, **way), tokens(2, 48, 20).unflatten(1, (6, 8))
    valid = torch.zeros(2, 6, 8, dtype=torch.bool)
    valid[0, :4, :5], valid[1] = True, True
    y = norm(x, mask=valid)
    torch.testing.assert_close(y[0, :4, :5], norm(x[:1, :4, :5])[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(y[1], norm(x[1:])[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, 2e-5)], ids=["double", "single"])
def test_rows_that_see_little_of_what_is_real(way, dtype, tolerance):
    """Weights that matter nowhere else do where all larger ones lie on padding: from mass 1 down to e^-49 = 5e-22."""
    norm, x = layer(6, 1, dtype=dtype, **way), tokens(2, 48, 6, dtype=dtype)
    with torch.no_grad():
        norm.position.copy_(torch.tensor([[-1.0, 14.0, 0.0]]))  # seven columns to the right
    valid = torch.zeros(2, 2, 24, dtype=torch.bool)
    valid[:, :, :10] = True
    valid = valid.flatten(1)
    assert_close(run(norm, x, grid=(2, 24), mask=valid), expect(norm, x, (2, 24), valid), tolerance)


def test_a_row_that_sees_no_real_token_takes_layer_norm(way):
    """Far offsets and holes: where the ratio P(m x) / P(m) is 0/0, intra-token statistics; finite gradients everywhere."""
    norm, x = layer(6, 1, **way), tokens(2, 48, 6)
    with torch.no_grad():
        norm.position.copy_(torch.tensor([[-1.0, 90.0, 90.0]]))  # all the weight in the last corner, e^-75 beside it
    valid = torch.ones(2, 48, dtype=torch.bool)
    valid[:, -1] = False  # its row and its column still have real tokens
    found = run(norm, x, grid=(6, 8), mask=valid)
    assert all(value.isfinite().all() for value in found.values())
    alone = nn.functional.layer_norm(x, (6,), norm.weight, norm.bias)
    torch.testing.assert_close(found["y"][valid], alone[valid].detach())


# ------------------------------------------------------------------------------------------- around one call


def test_resolution_may_change_between_calls(way):
    """Nothing of one call is kept for the next."""
    norm = layer(15, 3, **way)
    for grid in [(4, 4), (7, 11), (4, 4), (1, 5), (11, 7)]:
        x = tokens(2, grid[0] * grid[1], 15, seed=grid[0])
        assert_close(run(norm, x, grid=grid), expect(norm, x, grid), EXACT)


def test_two_forwards_before_one_backward(way):
    """Two calls of one layer in one graph: gradients add up."""
    norm, a, b = layer(15, 3, **way), tokens(2, 20, 15), tokens(3, 36, 15, seed=1)
    first, second = run(norm, a, grid=(4, 5)), run(norm, b, grid=(6, 6))
    norm.zero_grad()
    leaves = [value.clone().requires_grad_() for value in (a, b)]
    outputs = [norm(leaves[0], grid=(4, 5)), norm(leaves[1], grid=(6, 6))]
    noise = [torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype) for y in outputs]
    torch.autograd.backward(outputs, noise)
    assert torch.equal(leaves[0].grad, first["x"]) and torch.equal(leaves[1].grad, second["x"])
    for key, parameter in norm.named_parameters():
        torch.testing.assert_close(parameter.grad, first[key] + second[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(way, reentrant):
    """Running the forward pass again in the backward pass changes nothing."""
    norm, x = layer(15, 3, **way), tokens(2, 20, 15)
    expected = run(norm, x, grid=(4, 5))
    norm.zero_grad()
    leaf = x.clone().requires_grad_()
    y = checkpoint(lambda x: norm(x, grid=(4, 5)), leaf, use_reentrant=reentrant)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype))
    found = {"y": y.detach(), "x": leaf.grad, **{key: p.grad for key, p in norm.named_parameters()}}
    assert_close(found, expected, 0.0)


@pytest.mark.parametrize("name", ["native", "recomputed"])
def test_changing_a_saved_input_in_place_is_noticed(name, monkeypatch):
    """As for any torch layer that keeps its input: a gradient at a changed input would be wrong, so it is an error."""
    norm, x = layer(15, 3, **choose(name, monkeypatch)), tokens(2, 20, 15).requires_grad_()
    z = x * 1
    y = norm(z, grid=(4, 5))
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
