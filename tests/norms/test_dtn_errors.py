"""Bad options and grids of DTN: one ValueError that names what was given and what would fit.

Errors that all norms share are in test_contract.py.
"""

import pytest
import torch
from torch import Tensor

from dynavit.norms import DynamicTokenNorm, ReleasedDynamicTokenNorm, create_norm


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


BUILD = {
    "ndim is one of 1, 2; got 3": {"ndim": 3},
    "init is one of 'local', 'trunc_normal'; got 'lokal'": {"init": "lokal"},
    "offsets is one of 'centred', 'integer'; got 'centered'": {"offsets": "centered"},
    "average is one of 'learned', 'uniform', 'window'; got 'box'": {"average": "box"},
    "kernel is one of 'auto', 'dense', 'band'; got 'fft'": {"kernel": "fft"},
    "backend is one of 'auto', 'torch'; got 'cuda'": {"backend": "cuda"},
    "fixed_mean_lambda.*between 0 (inter-token) and 1 (intra-token); got 1.5": {"fixed_mean_lambda": 1.5},
    "fixed_var_lambda.*between 0 (inter-token) and 1 (intra-token); got -0.1": {"fixed_var_lambda": -0.1},
    "radius.*at least 1; got 0": {"radius": 0},
    "only_var means fixed_mean_lambda=1; got 0.5": {"only_var": True, "fixed_mean_lambda": 0.5},
    "num_prefix_tokens.*got -1": {"num_prefix_tokens": -1},
}


def as_pattern(message: str) -> str:
    for letter in "()[]":
        message = message.replace(letter, "\\" + letter)
    return message


@pytest.mark.parametrize("message", BUILD)
def test_building(message):
    with pytest.raises(ValueError, match=as_pattern(message)):
        create_norm("dtn", 12, **BUILD[message])


def test_unknown_options_name_their_neighbour():
    """Through create_norm: the option, the norm, and the nearest option that exists."""
    with pytest.raises(ValueError, match="'dtn'.*'fixed_lambda_mean'.*'fixed_mean_lambda'"):
        create_norm("dtn", 12, fixed_lambda_mean=1.0)
    with pytest.raises(ValueError, match="'dtn_released'.*'pooling'.*'pool'"):
        create_norm("dtn_released", 12, pooling=4)
    with pytest.raises(ValueError, match="'dtm'.*'dtn'"):
        create_norm("dtm", 12)


@pytest.mark.parametrize("norm_class", [DynamicTokenNorm, ReleasedDynamicTokenNorm])
def test_a_class_token_too_many(norm_class):
    """197 tokens are 14 x 14 and a class token; the error names the option for it."""
    norm = norm_class(12)
    with pytest.raises(ValueError, match=r"197 tokens and no grid.*square.*grid=\(rows, cols\).*num_prefix_tokens=1"):
        norm(zeros(1, 197, 12))
    with pytest.raises(ValueError, match="197 tokens, but grid 14x14 has 196.*num_prefix_tokens=1"):
        norm(zeros(1, 197, 12), grid=(14, 14))
    with pytest.raises(ValueError, match="201 tokens.*num_prefix_tokens=5"):
        norm(zeros(1, 201, 12), grid=(14, 14))


def test_a_class_token_too_few():
    """196 tokens for a layer that expects 197: 195 are no square."""
    norm = DynamicTokenNorm(12, num_prefix_tokens=1)
    with pytest.raises(ValueError, match=r"196 tokens and no grid.*square \+ 1 prefix tokens"):
        norm(zeros(1, 196, 12))
    with pytest.raises(ValueError, match=r"196 tokens, but grid 14x14 \+ 1 prefix tokens has 197"):
        norm(zeros(1, 196, 12), grid=(14, 14))
    with pytest.raises(ValueError, match="1 tokens, of which num_prefix_tokens=1 lie outside the grid"):
        norm(zeros(1, 1, 12))


def test_a_count_that_is_no_square():
    """No prefix tokens explain 190 = 10 x 19, so none are suggested."""
    with pytest.raises(ValueError, match=r"190 tokens and no grid.*Pass grid=\(rows, cols\); a model built without"):
        DynamicTokenNorm(12)(zeros(1, 190, 12))
    assert DynamicTokenNorm(12)(zeros(1, 190, 12), grid=(10, 19)).shape == (1, 190, 12)


def test_a_grid_that_does_not_fit():
    with pytest.raises(ValueError, match="20 tokens, but grid 4x6 has 24"):
        DynamicTokenNorm(12)(zeros(1, 20, 12), grid=(4, 6))
    with pytest.raises(ValueError, match=r"grid=\(2, 2, 5\).*ndim=2"):
        DynamicTokenNorm(12)(zeros(1, 20, 12), grid=(2, 2, 5))


@pytest.mark.parametrize("grid", [(0, 0), (-4, -5)])
def test_a_grid_without_tokens(grid):
    """Sides are at least 1, whatever their product is."""
    with pytest.raises(ValueError, match=r"grid=\(.*each side counts tokens, at least 1"):
        DynamicTokenNorm(12)(zeros(1, 20, 12), grid=grid)


def test_an_image_map_with_prefix_tokens():
    """(B, H, W, C) has no place for a class token."""
    with pytest.raises(ValueError, match=r"\(1, 4, 4, 12\).*expects 1 prefix tokens.*\(batch, tokens, channels\)"):
        DynamicTokenNorm(12, num_prefix_tokens=1)(zeros(1, 4, 4, 12))


def test_released_norm_has_its_own_options_only():
    """Options that the release lacks are unknown to it."""
    for option in ({"ndim": 1}, {"average": "uniform"}, {"kernel": "band"}, {"radius": 3}):
        with pytest.raises(ValueError, match=f"'{next(iter(option))}'"):
            create_norm("dtn_released", 12, **option)


def test_errors_name_the_class():
    for name, norm_class in (("dtn", "DynamicTokenNorm"), ("dtn_released", "ReleasedDynamicTokenNorm")):
        with pytest.raises(ValueError, match=f"^{norm_class}: "):
            create_norm(name, 12)(zeros(1, 190, 12))
        with pytest.raises(ValueError, match=f"^{norm_class}: "):
            create_norm(name, 12, backend="gpu")


def test_repr_shows_what_was_chosen():
    """Only what differs from the defaults."""
    assert repr(DynamicTokenNorm(12, heads=3)) == "DynamicTokenNorm(12, heads=3, eps=1e-05)"
    shown = repr(DynamicTokenNorm(12, heads=3, num_prefix_tokens=1, average="uniform", fixed_mean_lambda=0.0, affine=False))
    for word in ("num_prefix_tokens=1", "average='uniform'", "fixed_mean_lambda=0", "affine=False"):
        assert word in shown
    assert "pool=4" in repr(ReleasedDynamicTokenNorm(12, pool=4))


def test_a_grid_that_is_one_number():
    with pytest.raises(ValueError, match=r"got grid=4; pass grid=\(rows, cols\)"):
        DynamicTokenNorm(8)(torch.randn(1, 16, 8), grid=4)
