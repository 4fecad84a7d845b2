"""The mean that a norm subtracts, checked against the norm's own output: y = weight * (x - mu) / s + bias.

Where it is known over which axes s is the same, (y - bias) / weight / (x - mu) must not change along them.
"""

import math

import pytest
import torch
from torch import nn

from dynavit.analysis.measures.norm_mean import mean_coefficient, subtracted_mean, why_no_mean
from dynavit.norms import create_norm, list_norms

DIM, HEADS, GRID = 12, 3, (2, 5)
WITHOUT = {"rms", "scale", "power", "un", "dyt", "derf"}


def tokens(prefix=0):
    return 2 + 3 * torch.randn(4, prefix + math.prod(GRID), DIM, generator=torch.Generator().manual_seed(5)).double()


def made(name, **options):
    """A norm at evaluation that is no longer at its start."""
    torch.manual_seed(0)
    norm = create_norm(name, DIM, heads=HEADS, dtype=torch.float64, **options)
    with torch.no_grad():
        norm(tokens(options.get("num_prefix_tokens", 0)), grid=GRID if options.get("ndim") != 1 else None)
        for parameter in norm.parameters():
            parameter.add_(0.3 * torch.rand_like(parameter))
    if hasattr(norm, "set_progress"):
        norm.set_progress(1, 1)
    return norm.eval()


def scales(norm, x, grid=GRID):
    """weight / s, where the mean is right."""
    mean = subtracted_mean(norm, x, grid)
    assert mean.shape == x.shape and mean.dtype == torch.float64
    y = norm(x) if isinstance(norm, nn.LayerNorm) else norm(x, grid=grid)
    return (y - norm.bias) / (x - mean)


def assert_same_along(values, dims):
    assert values.isfinite().all()
    torch.testing.assert_close(values, values.mean(dims, keepdim=True).expand_as(values), rtol=1e-6, atol=0)


def only_layer_variance(norm):
    """s is now one number for each token."""
    with torch.no_grad():
        norm.var_logit.fill_(-60.0 if norm.var_logit.numel() == 3 and hasattr(norm, "sources") else 60.0)
        norm.var_logit[0] = 60.0
    return norm


@pytest.mark.parametrize("name", sorted(set(list_norms()) - {"ln", "in", "gn", "sn", "dtn", "dtn_released"} - WITHOUT))
def test_affine_maps_have_one_scale_for_each_channel(name):
    assert_same_along(scales(made(name), tokens()), (0, 1))


def test_torch_and_own_layer_norm():
    for norm in (made("ln"), nn.LayerNorm(DIM).double()):
        assert_same_along(scales(norm, tokens()) / norm.weight, -1)


def test_instance_norm_counts_all_tokens():
    assert_same_along(scales(made("in"), tokens()), 1)


def test_group_norm():
    norm = made("gn")
    assert_same_along((scales(norm, tokens()) / norm.weight).unflatten(-1, (HEADS, -1)), (1, 3))


def test_switchable_norm():
    norm = only_layer_variance(made("sn"))
    assert_same_along(scales(norm, tokens()) / norm.weight, -1)


DTN_OPTIONS = [
    {},
    {"num_prefix_tokens": 2},
    {"average": "uniform"},
    {"average": "window"},
    {"fixed_mean_lambda": 0.25},
    {"only_var": True},
    {"ndim": 1},
    {"ndim": 1, "kernel": "band", "radius": 2},
]


@pytest.mark.parametrize("options", DTN_OPTIONS, ids=str)
def test_dynamic_token_norm(options):
    norm = only_layer_variance(made("dtn", **options))
    x = tokens(options.get("num_prefix_tokens", 0))
    if norm.ndim == 1:
        assert_same_along(scales(norm, x, (x.shape[1],)) / norm.weight, -1)
    else:
        assert_same_along(scales(norm, x) / norm.weight, -1)


@pytest.mark.parametrize("options", [{}, {"num_prefix_tokens": 1}, {"pool": 2}], ids=str)
def test_released_dynamic_token_norm_in_units_of_x(options):
    grid = (2, 6) if "pool" in options else GRID
    norm = create_norm("dtn_released", DIM, heads=HEADS, dtype=torch.float64, **options).eval()
    with torch.no_grad():
        norm.bias.fill_(0.5)
        norm.mean_logit.fill_(-0.7)
    prefix = options.get("num_prefix_tokens", 0)
    x = torch.randn(2, prefix + math.prod(grid), DIM, generator=torch.Generator().manual_seed(5)).double()
    found = scales(only_layer_variance(norm), x, grid)
    assert_same_along(found.unflatten(-1, (HEADS, -1)), -1)


def test_the_scale_is_positive_with_learned_variances():
    for name in ("dtn", "dtn_released", "sn"):
        norm = made(name)
        assert (scales(norm, tokens()) / norm.weight > 0).all()


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_some_subtract_nothing(name):
    norm = made(name)
    assert subtracted_mean(norm, tokens(), GRID) is None
    assert why_no_mean(norm) == f"{type(norm).__name__} subtracts no mean"


def test_an_annealing_norm_has_no_one_mean():
    norm = create_norm("prepbn", DIM).eval()
    assert subtracted_mean(norm, tokens(), GRID) is None
    assert why_no_mean(norm).startswith("PRepBN is still 100% LayerNorm")


def test_unknown_modules_are_not_guessed():
    for unknown in (nn.Identity(), nn.LayerNorm((10, DIM))):
        assert subtracted_mean(unknown, tokens(), GRID) is None
        assert "is not known" in why_no_mean(unknown)


def test_a_channel_with_gain_zero_has_a_finite_mean():
    norm = made("bn")
    with torch.no_grad():
        norm.weight[3] = 0
    assert subtracted_mean(norm, tokens(), GRID).isfinite().all()


def test_the_coefficient_is_a_relative_distance():
    x, mean = torch.tensor([[[3.0, 4.0], [0.0, 0.0], [0.0, 1.0]]]), torch.tensor([[[3.0, 1.0], [1.0, 1.0], [0.0, 1.0]]])
    torch.testing.assert_close(mean_coefficient(x, mean), torch.tensor([[0.6, math.nan, 0.0]]).double(), equal_nan=True)
