"""DTN with pooled inter-token statistics: means of x and x² in cells, against the equations with the whole T x T matrix.

Pooling needs no matrix of cells to be written down: all tokens of a cell have the same weight, so P_ij is the softmax over the
real tokens j of the score between the cells of i and j. Padding and the end of the grid are the same thing: absent tokens.
"""

import math

import pytest
import torch
from torch import Tensor

from norms import dtn_oracle as oracle
from norms.dtn_cases import assert_close, cotangent, error, finite, layer, run, tokens

NEAR = 1e-11


def pooled_positional(position: Tensor, grid: tuple[int, int], k: int, mask: Tensor, radius: int | None = None) -> Tensor:
    """P (b, h, t, t): exp of the score between the cells of i and j, over the real tokens j, rows summing to 1.

    With a radius, over those whose cells are at most so many rows and columns away.
    """
    token = torch.arange(math.prod(grid))
    row, col = token // grid[1] // k, token % grid[1] // k
    dx, dy = (cell[None, :] - cell[:, None] for cell in (col, row))
    score = position[:, 0, None, None] * (dx**2 + dy**2) + position[:, 1, None, None] * dx + position[:, 2, None, None] * dy
    seen = mask[:, None, None, :]
    return oracle.softmax_rows(score[None], seen if radius is None else seen & (dx.abs() <= radius) & (dy.abs() <= radius))


def expect_pooled(norm, x: Tensor, grid: tuple[int, int], mask: Tensor | None = None):
    x = x.detach().double().requires_grad_()
    leaves = {key: p.detach().double().requires_grad_() for key, p in norm.named_parameters()}
    prefix = norm.num_prefix_tokens
    patches = torch.ones(len(x), math.prod(grid), dtype=torch.bool) if mask is None else mask[:, prefix:]
    P = pooled_positional(leaves["position"], grid, norm.pool, patches, norm.radius)
    lam = [leaves[name].sigmoid() for name in ("mean_logit", "var_logit")]
    y = oracle.dtn(x, P, *lam, leaves["weight"], leaves["bias"], prefix=prefix, mask=mask, eps=norm.eps)
    y.backward(cotangent(y))
    return {"y": y.detach(), "x": x.grad, **{key: leaf.grad for key, leaf in leaves.items()}}


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize(
    ("grid", "pool"), [((8, 12), 2), ((8, 12), 4), ((7, 9), 2), ((5, 13), 4), ((3, 3), 5), ((1, 7), 2), ((6, 1), 4)]
)
def test_equals_the_equations(way, grid, pool, prefix):
    """Also on grids that the pool does not divide."""
    norm, x = layer(20, 4, pool=pool, num_prefix_tokens=prefix, **way), tokens(2, prefix + math.prod(grid), 20)
    assert_close(run(norm, x, grid=grid), expect_pooled(norm, x, grid), NEAR)


@pytest.mark.parametrize("sizes", [None, [(15, 17), (13, 9), (16, 11), (3, 5), (1, 1)]], ids=["whole", "padded"])
@pytest.mark.parametrize("radius", [1, 2, 3])
def test_a_radius_counts_cells(way, radius, sizes):
    """The last row of cells away from the border may see one that is cut short: it is no copy of those before it."""
    grid = (16, 17) if sizes else (15, 17)
    norm, x = layer(20, 4, pool=2, radius=radius, **way), tokens(len(sizes or "ab"), math.prod(grid), 20)
    valid = torch.ones(len(x), *grid, dtype=torch.bool)
    for image, (rows, cols) in zip(valid, sizes or (), strict=False):
        image[rows:], image[:, cols:] = False, False
    mask = valid.flatten(1) if sizes else None
    assert_close(run(norm, x, grid=grid, mask=mask), expect_pooled(norm, x, grid, mask), NEAR)


@pytest.mark.parametrize("pool", [2, 4])
def test_padded_images_are_as_if_they_were_alone(way, pool):
    grid, sizes = (9, 14), [(9, 14), (6, 9), (3, 14), (1, 1)]
    norm, x = layer(20, 4, pool=pool, **way), tokens(len(sizes), math.prod(grid), 20)
    with torch.no_grad():
        norm.position += torch.tensor([0.0, 12.0, 12.0])  # far into the padding
    valid = torch.zeros(len(sizes), *grid, dtype=torch.bool)
    for image, (rows, cols) in zip(valid, sizes, strict=True):
        image[:rows, :cols] = True
    dirty = torch.where(valid.flatten(1)[..., None], x, torch.nan)
    found = run(norm, dirty, grid=grid, mask=valid.flatten(1))
    assert finite(found)
    assert_close(found, expect_pooled(norm, x, grid, valid.flatten(1)), NEAR)
    for k, (rows, cols) in enumerate(sizes):
        alone = norm(x[k].unflatten(0, grid)[:rows, :cols].flatten(0, 1)[None], grid=(rows, cols)).detach()[0]
        assert error(found["y"][k].unflatten(0, grid)[:rows, :cols].flatten(0, 1), alone) <= NEAR


def test_cells_weigh_their_share_of_real_tokens(way):
    """Masks with holes: P(w g) / P(w), w the share of real tokens in a cell."""
    norm, x = layer(20, 4, pool=2, **way), tokens(3, 35, 20)
    valid = torch.rand(3, 35, generator=torch.Generator().manual_seed(5)) < 0.7
    assert_close(run(norm, x, grid=(5, 7), mask=valid), expect_pooled(norm, x, (5, 7), valid), NEAR)


def test_the_variance_inside_a_cell_counts():
    """Tokens that differ only inside cells: pooled x alone, as released, would see no variance at all."""
    norm = layer(4, 1, pool=2, fixed_mean_lambda=0.0, fixed_var_lambda=0.0, dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    x = (sign[:, None] * sign).repeat(3, 3).reshape(1, 36, 1) * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    y = (norm(x, grid=(6, 6)) - norm.bias) / norm.weight
    torch.testing.assert_close(y.abs(), torch.ones_like(y), rtol=1e-4, atol=0)


def test_single_precision_is_near(way):
    norm, x = layer(27, 3, pool=4, dtype=torch.float32, **way), tokens(2, 15 * 22, 27, dtype=torch.float32)
    assert_close(run(norm, x, grid=(15, 22)), expect_pooled(norm, x, (15, 22)), 3e-5)


def test_pool_one_is_no_pooling(way):
    plain, pooled = (layer(20, 4, **own, **way) for own in ({}, {"pool": 1}))
    x = tokens(2, 30, 20)
    assert_close(run(pooled, x, grid=(5, 6)), run(plain, x, grid=(5, 6)), 0.0)


def test_uniform_averages_do_not_change(way):
    plain, pooled = (layer(20, 4, average="uniform", **own, **way) for own in ({}, {"pool": 2}))
    x = tokens(2, 35, 20)
    assert_close(run(pooled, x, grid=(5, 7)), run(plain, x, grid=(5, 7)), NEAR)


@pytest.mark.parametrize(("grid", "pool", "token"), [((6, 8), 2, 21), ((5, 7), 4, 34)])
def test_weights_of_one_token(grid, pool, token):
    norm = layer(6, 2, pool=pool)
    mask = torch.ones(1, math.prod(grid), dtype=torch.bool)
    expected = pooled_positional(norm.position.detach(), grid, pool, mask)[0, :, token]
    torch.testing.assert_close(norm.positional_weights(grid, token).flatten(1), expected)


@pytest.mark.parametrize("options", [{"pool": 0}, {"pool": 2, "ndim": 1}])
def test_what_cannot_be_pooled(options):
    with pytest.raises(ValueError, match="side of a cell of tokens"):
        layer(6, 2, **options)
