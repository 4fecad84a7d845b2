"""DynamicTokenNorm on grids equals the equations, written out in `dtn_oracle.py` with the whole T x T matrix.

Every test runs for the three ways of computing the layer: the C kernel, plain torch, and torch with recomputation.
"""

import math

import pytest
import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from dynavit.norms import DynamicTokenNorm
from dynavit.norms.dtn import layer as dtn_layer
from dynavit.norms.dtn.native import build
from norms.dtn_cases import WAYS, assert_close, choose, error, expect, layer, run, tokens

EXACT = 1e-11

# grid, channels, heads: head widths from 1 to 35, mostly not a multiple of the width of a vector register.
SHAPES = [
    ((4, 4), 6, 1),
    ((1, 16), 10, 2),
    ((16, 1), 9, 3),
    ((4, 9), 20, 4),
    ((7, 11), 35, 5),
    ((5, 5), 42, 6),
    ((4, 4), 63, 9),
    ((7, 11), 35, 1),
    ((5, 5), 9, 9),  # one channel per head
    ((1, 1), 6, 2),
    ((2, 3), 4, 2),
]
by_shape = pytest.mark.parametrize(("grid", "dim", "heads"), SHAPES, ids=lambda value: str(value).replace(" ", ""))


# --------------------------------------------------------------------------------------- values and gradients


@by_shape
def test_equals_the_equations(way, grid, dim, heads):
    """Output and the gradients of the input and of every parameter."""
    norm = layer(dim, heads, **way)
    x = tokens(2, grid[0] * grid[1], dim)
    assert_close(run(norm, x, grid=grid), expect(norm, x, grid), EXACT)


@pytest.mark.parametrize("samples", [0, 1, 3, 5])
def test_any_batch_size(way, samples):
    """Samples do not know each other; an empty batch has no output and zero gradients."""
    norm, x = layer(15, 3, **way), tokens(5, 28, 15)[:samples]
    found = run(norm, x, grid=(4, 7))
    if samples == 0:
        assert found["y"].shape == found["x"].shape == x.shape
        assert all(not found[key].any() for key, _ in norm.named_parameters())
        return
    assert_close(found, expect(norm, x, (4, 7)), EXACT)


@pytest.mark.parametrize("prefix", [1, 3])
def test_prefix_tokens_get_layer_norm_and_stay_outside(way, prefix):
    """A class token and registers: intra-token statistics, and no patch sees them."""
    norm = layer(35, 5, num_prefix_tokens=prefix, **way)
    x = tokens(3, prefix + 28, 35)
    assert_close(run(norm, x, grid=(4, 7)), expect(norm, x, (4, 7)), EXACT)
    alone = torch.nn.functional.layer_norm(x[:, :prefix], (35,), norm.weight, norm.bias)
    torch.testing.assert_close(norm(x, grid=(4, 7))[:, :prefix], alone)


def test_without_affine_map(way):
    norm = layer(14, 2, affine=False, **way)
    x = tokens(2, 20, 14)
    found = run(norm, x, grid=(4, 5))
    assert found.keys() == {"y", "x", "mean_logit", "var_logit", "position"}
    assert_close(found, expect(norm, x, (4, 5)), EXACT)


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (2, 1, 0)])
def test_input_of_any_memory_order(way, order):
    """Strides as a transpose leaves them; the gradient too."""
    norm, x = layer(10, 2, **way), tokens(3, 20, 10)
    inverse = [order.index(axis) for axis in range(3)]
    strided = x.permute(order).contiguous().permute(inverse)
    assert not strided.is_contiguous() and torch.equal(strided, x)
    assert_close(run(norm, strided, grid=(4, 5)), expect(norm, x, (4, 5)), EXACT)


def test_every_second_token_and_an_expanded_cotangent(way):
    """Strides that no permutation makes, and the zero strides of a sum's gradient."""
    norm, x = layer(10, 2, **way), tokens(3, 32, 10)
    wide = x.clone().requires_grad_()
    norm(wide[:, ::2]).sum().backward()
    narrow = x[:, ::2].clone().requires_grad_()
    norm(narrow).backward(torch.ones(3, 16, 10, dtype=torch.float64))
    assert torch.equal(wide.grad[:, ::2], narrow.grad) and not wide.grad[:, 1::2].any()


# Kernels that are cut narrow on long axes have many equal rows, which the C kernel's gradient sums in one go; those with
# a_0 > 0 look at the far end. [d², dx, dy] per head.
KERNELS = {
    "narrow": [[-4.0, 0.7, -0.3], [-1.0, 2.0, -2.0], [-0.3, 0.1, 0.2]],
    "one-hot": [[-60.0, 0.0, 0.0], [-60.0, 60.0, 0.0], [-80.0, 80.0, -160.0]],
    "wide": [[-0.04, 0.3, -1.0], [0.0, 0.0, 0.0], [0.0, 0.5, -0.5]],
    "outward": [[0.04, 0.0, 0.0], [1.0, 0.3, 0.1], [0.04, -3.0, 30.0]],
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("grid", [(19, 34), (45, 3), (2, 70)], ids=str)
def test_long_axes(way, kernel, grid):
    """Every shape of kernel, on axes longer than it is wide."""
    norm = layer(9, 3, **way)
    with torch.no_grad():
        norm.position.copy_(torch.tensor(KERNELS[kernel]))
    x = tokens(1, grid[0] * grid[1], 9)
    assert_close(run(norm, x, grid=grid), expect(norm, x, grid), EXACT)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("prefix", [0, 1])
def test_threads_of_the_c_kernel(threads, prefix):
    """Any number of threads gives the equations; each thread sums kernel gradients of its own."""
    before = torch.get_num_threads()
    norm, x = layer(35, 5, num_prefix_tokens=prefix), tokens(3, prefix + 77, 35)
    torch.set_num_threads(threads)
    try:
        found = run(norm, x, grid=(7, 11))
        again = run(norm, x, grid=(7, 11))
    finally:
        torch.set_num_threads(before)
    assert_close(found, expect(norm, x, (7, 11)), EXACT)
    assert all(torch.equal(found[key], again[key]) for key in found), "the same threads give the same bits"


def test_tiles_that_do_not_fit_the_cache():
    """A head wider than the C kernel's tile is cut into several tiles, the last one narrower."""
    norm, x = layer(38, 2), tokens(1, 4624, 38, seed=5)
    found = run(norm, x, grid=(68, 68))
    plain = layer(38, 2, backend="torch")
    assert_close(found, run(plain, x, grid=(68, 68)), EXACT)


@by_shape
def test_float32_is_near_float64(way, grid, dim, heads):
    """Single precision, 2e-5 of the largest value from float64 on the same numbers."""
    norm = layer(dim, heads, dtype=torch.float32, **way)
    x = tokens(2, grid[0] * grid[1], dim, dtype=torch.float32)
    found = run(norm, x, grid=grid)
    assert all(value.dtype == torch.float32 for value in found.values())
    assert_close(found, expect(norm, x, grid), 2e-5)


# ------------------------------------------------------------------------------------------------ derivatives


def as_function(norm: DynamicTokenNorm, x: torch.Tensor, **call):
    """The layer as a function of its input and all parameters, and these as leaves."""
    names, values = zip(*norm.named_parameters(), strict=True)
    leaves = [value.detach().clone().requires_grad_() for value in (x, *values)]
    return lambda x, *values: functional_call(norm, dict(zip(names, values, strict=True)), (x,), call), leaves


@pytest.mark.parametrize(
    ("way", "prefix"),
    [
        *(("native", 0), ("native", 1), ("torch", 0), ("recomputed", 1)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("torch", 1), ("recomputed", 0))),
    ],
    indirect=["way"],
)
def test_gradcheck(way, prefix):
    """The gradients are the derivatives, by finite differences."""
    norm = layer(6, 2, num_prefix_tokens=prefix, **way)
    call, leaves = as_function(norm, tokens(2, 6 + prefix, 6), grid=(2, 3))
    assert torch.autograd.gradcheck(call, leaves)


def test_second_derivatives_of_plain_torch():
    norm = layer(4, 2, backend="torch")
    call, leaves = as_function(norm, tokens(1, 4, 4))
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["native", "recomputed"])
def test_second_derivatives_are_refused(name, masked, monkeypatch):
    """The fast ways know first derivatives only; asking for more is an error that names the way out, not a wrong number."""
    norm = layer(4, 2, **choose(name, monkeypatch))
    x = tokens(1, 4, 4).requires_grad_()
    mask = torch.tensor([[True, True, False, True]]) if masked else None
    (first,) = torch.autograd.grad(norm(x, mask=mask).square().sum(), x, create_graph=True)
    with pytest.raises((RuntimeError, NotImplementedError), match=r'backend="torch"'):
        first.square().sum().backward()


DIRECT = {
    "logits": ((3, 5), {}),
    "prefix, no affine map": ((4, 4), {"num_prefix_tokens": 2, "affine": False}),
    "a fixed lambda": ((4, 3), {"only_var": True}),
    "both lambdas fixed": ((4, 3), {"fixed_mean_lambda": 0.25, "fixed_var_lambda": 0.0}),
    "a window": ((5, 4), {"average": "window"}),
    "a sequence": ((17,), {"ndim": 1}),
    "a band": ((40,), {"ndim": 1, "kernel": "band", "radius": 3}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("shares", [False, True])
def test_the_direct_call_equals_the_dispatched_one(name, shares, dtype, monkeypatch):
    """An ordinary call hands its parameters to C as they are; the dispatcher's op gets lambda as a tensor."""
    grid, options = DIRECT[name]
    norm = layer(12, 3, dtype=dtype, **options)
    if shares and norm.starts_as == "ln":
        with torch.no_grad():
            norm.start_at(1)
            for share in (norm.mean_share, norm.var_share):
                if share is not None:
                    share.copy_(torch.tensor([0.0, 0.4, 1.0]))
    x = tokens(2, norm.num_prefix_tokens + math.prod(grid), 12, dtype=dtype)
    direct = run(norm, x, grid=grid)
    assert "Direct" in type(norm(x.requires_grad_(), grid=grid).grad_fn).__name__
    monkeypatch.setattr(dtn_layer, "can_be_direct", lambda *_: False)
    dispatched = run(norm, x, grid=grid)
    assert direct.keys() == dispatched.keys()
    assert_close(direct, dispatched, 1e-14 if dtype == torch.float64 else 2e-6)


def test_each_way_is_the_way_it_says(monkeypatch):
    """The three ways of the tests above really are three."""

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.add(func.namespace)
            return func(*args, **(kwargs or {}))

    native, nodes = {}, {}
    for name in WAYS:
        seen: set[str] = set()
        with monkeypatch.context() as patch, Ops():
            y = layer(6, 2, **choose(name, patch))(tokens(1, 4, 6))
        native[name], nodes[name] = "dynavit" in seen, type(y.grad_fn.next_functions[0][0] or y.grad_fn).__name__
    assert native == {"native": True, "torch": False, "recomputed": False}
    assert "_Native" in nodes["native"] and "_Recomputed" in nodes["recomputed"]
    assert "_Native" not in nodes["torch"] and "_Recomputed" not in nodes["torch"]
    assert build.native_kernel_available()


def test_ways_agree_without_gradients(way):
    """no_grad and inference_mode take shorter paths to the same output."""
    norm, x = layer(15, 3, **way), tokens(2, 20, 15)
    expected = expect(norm, x, (4, 5))["y"]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert error(norm(x, grid=(4, 5)), expected) <= EXACT


@pytest.mark.parametrize("frozen", ["x", "weight", "bias", "mean_logit", "var_logit", "position", "all but x"])
def test_frozen_parameters_change_no_other_gradient(way, frozen):
    norm, x = layer(10, 2, **way), tokens(2, 20, 10)
    expected = expect(norm, x, (4, 5))
    x = x.requires_grad_(frozen != "x")
    for key, parameter in norm.named_parameters():
        parameter.requires_grad_(frozen not in (key, "all but x"))
    y = norm(x, grid=(4, 5))
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype))
    for key, leaf in {"x": x, **dict(norm.named_parameters())}.items():
        if leaf.requires_grad:
            assert error(leaf.grad, expected[key]) <= EXACT, key
        else:
            assert leaf.grad is None
