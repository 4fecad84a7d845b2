"""`dtn_released` computes what the authors' code computes: the numbers of `golden/dtn`, and section 1.1 written out."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dynavit.norms import ReleasedDynamicTokenNorm, create_norm
from norms import dtn_oracle as oracle
from norms.dtn_cases import Result, assert_close, cotangent, error, run, scatter, tokens
from norms.test_goldens import normals

EXACT = 1e-11


def released(dim: int, heads: int, seed: int = 1, **options) -> ReleasedDynamicTokenNorm:
    return scatter(ReleasedDynamicTokenNorm(dim, heads=heads, **{"dtype": torch.float64, **options}), seed)


def expect(norm: ReleasedDynamicTokenNorm, x: Tensor, grid: tuple[int, int], cell_mask: Tensor | None = None) -> Result:
    """The oracle's output and gradients for the layer's parameters."""
    x = x.detach().double().requires_grad_()
    leaves = {key: p.detach().double().requires_grad_() for key, p in norm.named_parameters()}
    P = oracle.positional(leaves["position"], tuple(n // norm.pool for n in grid), cell_mask)
    one = torch.ones(norm.heads, dtype=torch.float64)
    lam = [leaves[key].sigmoid() if key in leaves else one for key in ("mean_logit", "var_logit")]
    y = oracle.dtn_released(x, P, *lam, leaves.get("weight"), leaves.get("bias"), grid=grid, pool=norm.pool, eps=norm.eps)
    y.backward(cotangent(y))
    return {"y": y.detach(), "x": x.grad, **{key: leaf.grad for key, leaf in leaves.items()}}


# ------------------------------------------------------------------------------------------------ the equations


@pytest.mark.parametrize(
    ("grid", "dim", "heads", "options"),
    [
        ((4, 4), 6, 1, {}),
        ((7, 11), 35, 5, {}),
        ((4, 9), 36, 4, {"only_var": True}),
        ((5, 5), 42, 6, {"affine": False}),
        ((16, 1), 9, 3, {}),
        ((4, 6), 10, 2, {"pool": 2}),
        ((6, 9), 9, 3, {"pool": 3, "only_var": True}),
        ((8, 8), 12, 4, {"pool": 8}),
    ],
    ids=str,
)
def test_equals_the_released_equations(way, grid, dim, heads, options):
    """RMS per head, C − 1, the shared kernels, pooled or not: output and all gradients."""
    norm = released(dim, heads, **options, **way)
    x = tokens(2, grid[0] * grid[1], dim)
    assert_close(run(norm, x, grid=grid), expect(norm, x, grid), EXACT)


def test_float32_is_near_float64(way):
    norm = released(36, 4, dtype=torch.float32, **way)
    x = tokens(2, 36, 36, dtype=torch.float32)
    assert_close(run(norm, x, grid=(4, 9)), expect(norm, x, (4, 9)), 2e-5)


def test_lambda_one_is_not_layer_norm(way):
    """It is LayerNorm of u without its gain for C − 1: the same as prefix tokens get."""
    x = tokens(2, 18, 12)
    norm = released(12, 3, num_prefix_tokens=2, **way)
    with torch.no_grad():
        norm.mean_logit.fill_(100.0), norm.var_logit.fill_(100.0)
    u = oracle.head_rms(x, 3)
    var = u.var(-1, keepdim=True)  # torch's own divides by C − 1
    expected = (u - u.mean(-1, keepdim=True)) / (var + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected)
    assert error(norm(x).detach(), nn.functional.layer_norm(x, (12,), norm.weight, norm.bias).detach()) > 0.1


def test_prefix_tokens_stay_outside(way):
    """Patches do not see them, and they have intra-token statistics."""
    norm, x = released(12, 3, num_prefix_tokens=2, **way), tokens(2, 18, 12)
    plain = released(12, 3, **way)
    plain.load_state_dict(norm.state_dict())  # two of the three heads start at random
    torch.testing.assert_close(norm(x)[:, 2:], plain(x[:, 2:]), rtol=1e-12, atol=1e-12)
    u = oracle.head_rms(x[:, :2], 3)
    expected = oracle.normalise(u, u.mean(-1, keepdim=True), u.var(-1, keepdim=True), norm.weight, norm.bias, 1e-5)
    torch.testing.assert_close(norm(x)[:, :2], expected)


def test_magnitudes_of_tokens_are_erased(way):
    """Each head of each token may be scaled by any factor: the output stays, but for eps."""
    norm, x = released(12, 3, eps=1e-12, **way), tokens(2, 16, 12)
    factor = torch.rand(2, 16, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    torch.testing.assert_close(norm(x * factor.repeat_interleave(4, -1)), norm(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pool", [1, 2])
def test_masks_of_whole_cells(way, pool):
    """Padding is left out of the inter-token average, pooled or not."""
    norm, grid = released(10, 2, pool=pool, **way), (6, 8)
    cells = torch.rand(2, (6 // pool) * (8 // pool), generator=torch.Generator().manual_seed(2)) > 0.3
    valid = oracle.spread_cells(cells[..., None], grid, pool)[..., 0]
    x = tokens(2, 48, 10)
    y = norm(x, grid=grid, mask=valid)
    assert error(y[valid].detach(), expect(norm, x, grid, cells)["y"][valid]) <= EXACT
    assert not y[~valid].any()


def test_pooling_in_part_padded_cells_takes_their_real_tokens(way):
    """A cell's value is the mean of its real tokens; cells without any are left out."""
    norm, x = released(4, 2, pool=2, **way), tokens(1, 16, 4)
    valid = torch.ones(1, 4, 4, dtype=torch.bool)
    valid[0, 0, 1:] = False  # one real token less in the first cell's row; the second cell keeps its lower row
    y = norm(x, mask=valid.flatten(1))
    u = oracle.head_rms(x, 2).unflatten(1, (4, 4))
    # The same cell means, as full cells: copies of the mean in every token of the cell.
    cells = torch.stack([u[0, r : r + 2, c : c + 2][valid[0, r : r + 2, c : c + 2]].mean(0) for r in (0, 2) for c in (0, 2)])[
        None
    ]
    m = oracle.average(P := oracle.positional(norm.position.detach(), (2, 2)), cells)
    v = oracle.average(P, cells**2) - m**2
    lam = [logit.detach().sigmoid().repeat_interleave(2) for logit in (norm.mean_logit, norm.var_logit)]
    u = u.flatten(1, 2)
    mean = lam[0] * u.mean(-1, keepdim=True) + (1 - lam[0]) * oracle.spread_cells(m, (4, 4), 2)
    var = lam[1] * u.var(-1, keepdim=True) + (1 - lam[1]) * oracle.spread_cells(v, (4, 4), 2)
    expected = oracle.normalise(u, mean, var, norm.weight, norm.bias, 1e-5)
    real = valid.flatten(1)
    torch.testing.assert_close(y[real], expected[real])


def test_same_names_as_dtn():
    """One state dict for both; `only_var` has no logit of the mean."""
    shapes = {key: value.shape for key, value in create_norm("dtn", 12, heads=3).state_dict().items()}
    assert {key: value.shape for key, value in create_norm("dtn_released", 12, heads=3).state_dict().items()} == shapes
    assert "mean_logit" not in create_norm("dtn_released", 12, heads=3, only_var=True).state_dict()


def test_pool_must_divide_the_grid():
    norm = ReleasedDynamicTokenNorm(6, pool=4)
    with pytest.raises(ValueError, match="4x6 grid.*4x4; pool must divide both sides"):
        norm(tokens(1, 24, 6, dtype=torch.float32), grid=(4, 6))
    with pytest.raises(ValueError, match="pool is.*at least 1; got 0"):
        ReleasedDynamicTokenNorm(6, pool=0)


# ---------------------------------------------------------------------------------------------------- golden/dtn

CASES = ["dtn_c48_h4_4x4", "dtn_c432_h9_14x14", "dtn_c64_h1_56x56_pool4", "dtn_var_c48_h4_4x4"]
RELEASED_NAMES = {"mean_logit": "mean_norm_weight", "var_logit": "var_norm_weight", "position": "pos_proj.weight"}
GOLDEN = 1e-12


def our_position(columns: Tensor) -> Tensor:
    """Released columns (w0, w1, w2) of dx, dy, d² = target − source, as [d², dx, dy] of source − target."""
    w0, w1, w2 = columns.unbind(-1)
    return torch.stack([w2, -w0, -w1], -1)


def load(case: str, folder, **options) -> tuple[ReleasedDynamicTokenNorm, dict, dict]:
    """The layer of a case with its parameters, the stored numbers, and the settings."""
    golden = np.load(folder / "dtn" / f"{case}.npz")
    meta = json.loads(str(golden["meta"]))
    norm = ReleasedDynamicTokenNorm(
        meta["C"],
        heads=meta["heads"],
        pool=meta["pool"],
        only_var=meta["only_var"],
        eps=meta["eps"],
        dtype=torch.float64,
        **options,
    )
    with torch.no_grad():
        for key, parameter in norm.named_parameters():
            noise = normals(RELEASED_NAMES.get(key, key), *parameter.shape)
            if key == "position":
                columns = noise * noise.new_tensor([0.5, 0.5, 0.05]) + noise.new_tensor([0, 0, -0.15])
                parameter.copy_(our_position(columns))
            else:
                parameter.copy_({"weight": 1 + 0.1 * noise, "bias": 0.1 * noise}.get(key, noise))
    return norm, golden, meta


def check_golden(found: Tensor, golden: dict, name: str) -> None:
    """Relative to the largest number of the array; large arrays are stored as samples, their sum and sum of squares."""
    assert list(found.shape) == golden[f"{name}.shape"].tolist()
    if name in golden:
        part, stored = found, golden[name]
    else:
        part, stored = found.flatten()[torch.from_numpy(golden[f"{name}.index"]).long()], golden[f"{name}.sample"]
    assert error(part, torch.from_numpy(stored)) <= GOLDEN, name
    assert abs(float(found.square().sum()) / float(golden[f"{name}.sumsq"]) - 1) <= GOLDEN, name
    assert abs(float(found.sum()) - float(golden[f"{name}.sum"])) <= GOLDEN * float(found.abs().sum()), name


def check_result(found: Result, golden: dict) -> None:
    for key, value in found.items():
        if key == "position":  # gradients change order and sign with the columns
            a0, ax, ay = value.unbind(-1)
            value = torch.stack([-ax, -ay, a0], -1)
        check_golden(value, golden, "y" if key == "y" else f"grad.{RELEASED_NAMES.get(key, key)}")


def golden_call(case: str, meta: dict) -> tuple[Tensor, Tensor]:
    shape = (meta["batch"], meta["resolution"][0] * meta["resolution"][1], meta["C"])
    return 0.5 + 1.5 * normals(f"input:{case}", *shape), normals(f"cotangent:{case}", *shape)


@pytest.mark.parametrize("case", CASES)
def test_goldens(way, case, shared_golden):
    """Output and every gradient of the released layer, to 1e-12."""
    norm, golden, meta = load(case, shared_golden, **way)
    x, noise = golden_call(case, meta)
    x.requires_grad_()
    y = norm(x, grid=tuple(meta["resolution"]))
    y.backward(noise)
    check_result({"y": y.detach(), "x": x.grad, **{key: p.grad for key, p in norm.named_parameters()}}, golden)
    assert torch.equal(norm.eval()(x, grid=tuple(meta["resolution"])), y) == bool(golden["eval_equals_train"])


@pytest.mark.parametrize("case", CASES)
def test_goldens_of_the_oracle(case, shared_golden):
    """The oracle of the tests above gives the released numbers too."""
    norm, golden, meta = load(case, shared_golden)
    x, noise = golden_call(case, meta)
    x.requires_grad_()
    P = oracle.positional(norm.position, (meta["grid"], meta["grid"]))
    lam_mean = norm.mean_logit.sigmoid() if norm.mean_logit is not None else torch.ones(norm.heads, dtype=torch.float64)
    grid, pool = tuple(meta["resolution"]), meta["pool"]
    y = oracle.dtn_released(x, P, lam_mean, norm.var_logit.sigmoid(), norm.weight, norm.bias, grid=grid, pool=pool)
    y.backward(noise)
    check_result({"y": y.detach(), "x": x.grad, **{key: p.grad for key, p in norm.named_parameters()}}, golden)


@pytest.mark.parametrize("case", CASES)
def test_goldens_of_the_positional_weights(case, shared_golden):
    """The weights with which one target averages its sources; on a pooled grid, those of each cell."""
    norm, golden, meta = load(case, shared_golden)
    grid, pool, target = tuple(meta["resolution"]), meta["pool"], int(golden["Q.target"])
    row, col = divmod(target, meta["grid"])
    weights = norm.positional_weights(grid, row * pool * grid[1] + col * pool)
    assert weights.shape == (norm.heads, *grid)
    cells = weights.reshape(norm.heads, meta["grid"], pool, meta["grid"], pool).sum((2, 4)).flatten(1)
    assert error(cells, torch.from_numpy(golden["Q.column"])) <= GOLDEN
    if "Q" in golden:  # (heads, source, target)
        for token in range(16):
            assert error(norm.positional_weights(grid, token).flatten(1), torch.from_numpy(golden["Q"][:, :, token])) <= GOLDEN


def test_golden_start(shared_golden):
    """Eqn 7 as released: the first floor(√H)² heads; the others are small random numbers."""
    golden = np.load(shared_golden / "dtn" / "dtn_local_init.npz")
    for name in (name for name in golden.files if name.startswith("H")):
        heads = int(name[1:])
        position = ReleasedDynamicTokenNorm(heads, heads=heads).position.detach()
        known = torch.from_numpy(golden[name])
        assert torch.equal(position[: len(known)], our_position(known)), name
        assert position[len(known) :].abs().lt(0.1).all()
