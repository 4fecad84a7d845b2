"""Checks of the kernels in triton's interpreter. Not collected: `test_interpreted.py` runs them in a process of their own.

The layer is called as anybody would call it and compared with the dense oracle in float64, which shares no code with it.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dynavit.norms import create_norm
from dynavit.norms.dtn import op as dtn_op
from dynavit.norms.dtn.gpu import configuration, gate, launch
from dynavit.norms.dtn.init import local_position
from dynavit.norms.dtn.math import Layout, Operands
from norms.dtn_cases import assert_close, cotangent, error, expect, layer, run, scatter, tokens
from norms.gpu.canaries import Guards
from norms.gpu.tf32 import emulate

# numpy warns of what a GPU does in silence: 0 / 0 and overflow beyond the grid, in numbers that are thrown away.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def _interpreter() -> None:
    assert gate.INTERPRETED and not gate.obstacle()


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """Names of the calls that reached the kernels: nothing here may be computed by another way unseen."""
    seen: list[str] = []
    for name in ("forward", "backward"):
        plain = getattr(launch, name)
        monkeypatch.setattr(launch, name, lambda *given, plain=plain, name=name: (seen.append(name), plain(*given))[1])
    return seen


def rectangles(samples: int, grid: tuple[int, int], prefix: int = 0) -> Tensor:
    """Masks as detection has them: a real rectangle at the top left, another one for each sample; and a hole."""
    mask = torch.ones(samples, prefix + math.prod(grid), dtype=torch.bool)
    for k, patches in enumerate(mask[:, prefix:].view(samples, *grid)):
        patches[max(1, grid[0] - 1 - k) :] = False
        patches[:, max(1, grid[1] - 2 * k) :] = False
        patches[0, 0] = k % 2 == 0
    return mask


# ------------------------------------------------------------------------------------------------ float64


CASES = [
    pytest.param((4, 5), 6, 2, {"num_prefix_tokens": 2}, id="prefix"),
    pytest.param((2, 18), 2, 1, {}, id="two groups of columns"),
    pytest.param((3, 4), 4, 1, {"affine": False, "only_var": True}, marks=slow, id="no affine, only_var"),
    pytest.param((7, 11), 24, 4, {}, marks=slow, id="7x11, 6 channels a head"),
    pytest.param((17, 33), 6, 1, {"init": "trunc_normal", "num_prefix_tokens": 1}, marks=slow, id="17x33"),
    pytest.param((1, 16), 12, 2, {"affine": False, "num_prefix_tokens": 1}, marks=slow, id="1x16 no affine"),
    pytest.param((16, 1), 12, 2, {}, marks=slow, id="16x1"),
    pytest.param((1, 1), 12, 2, {}, marks=slow, id="one token"),
    pytest.param((33, 5), 6, 2, {}, marks=slow, id="33x5: padded to 64 rows"),
    pytest.param((6, 6), 34, 2, {"average": "window"}, marks=slow, id="window, a head of more than one block"),
    pytest.param((5, 20), 6, 2, {"fixed_mean_lambda": 0.25, "fixed_var_lambda": 0.0}, marks=slow, id="fixed lambda"),
    pytest.param((56, 56), 2, 1, {}, marks=slow, id="56x56"),
    pytest.param((64, 64), 1, 1, {"init": "trunc_normal"}, marks=slow, id="64x64"),
]


@pytest.mark.parametrize(("grid", "channels", "heads", "options"), CASES)
def test_float64(grid, channels, heads, options, launches):
    """Output and every gradient against the dense oracle."""
    norm = layer(channels, heads, **options)
    x = tokens(2, norm.num_prefix_tokens + math.prod(grid), channels)
    # The oracle's matrix would be large on large grids: there plain torch, which has its own tests against it.
    expected = expect(norm, x, grid) if math.prod(grid) < 1000 else run(twin(norm), x, grid=grid)
    assert_close(run(norm, x, grid=grid), expected, 1e-12)
    assert launches == ["forward", "backward"]


def twin(norm):
    """The same layer in plain torch."""
    other = layer(norm.dim, norm.heads, init=norm.init, num_prefix_tokens=norm.num_prefix_tokens, backend="torch")
    other.load_state_dict(norm.state_dict())
    return other


@slow
@pytest.mark.parametrize("grid", [(5, 9), (9, 20)], ids=str)
def test_radius(grid, launches):
    norm = layer(6, 2, radius=2)
    x = tokens(2, math.prod(grid), 6)
    assert_close(run(norm, x, grid=grid), expect(norm, x, grid, radius=2), 1e-12)
    assert launches == ["forward", "backward"]


MASKED = [
    pytest.param((3, 18), 2, 1, {"num_prefix_tokens": 1}, id="3x18"),
    pytest.param((5, 6), 3, 1, {"num_prefix_tokens": 1}, marks=slow, id="5x6"),
    pytest.param((5, 6), 6, 2, {"radius": 2}, marks=slow, id="5x6 radius"),
    pytest.param((9, 20), 12, 2, {}, marks=slow, id="9x20"),
    pytest.param((20, 6), 4, 1, {"affine": False, "only_var": True}, marks=slow, id="20x6"),
]


@pytest.mark.parametrize(("grid", "channels", "heads", "options"), MASKED)
def test_masked_rectangles(grid, channels, heads, options, launches):
    """P(m x) / P(m); garbage in the padding changes nothing."""
    norm = layer(channels, heads, **options)
    x, mask = tokens(3, norm.num_prefix_tokens + math.prod(grid), channels), rectangles(3, grid, norm.num_prefix_tokens)
    found = run(norm, torch.where(mask[..., None], x, math.nan), grid=grid, mask=mask)
    assert_close(found, expect(norm, x, grid, mask, norm.radius), 1e-12)
    assert launches == ["forward", "backward"]


@pytest.mark.parametrize("options", [{"average": "uniform"}, {"ndim": 1}, {"backend": "torch"}], ids=str)
def test_other_calls_are_left_to_torch(options, launches):
    norm = layer(6, 2, **options)
    grid = (16,) if norm.ndim == 1 else (4, 4)
    x = tokens(2, 16, 6)
    assert_close(run(norm, x), expect(norm, x, grid), 1e-12)
    assert launches == []


@slow
def test_masked_row_that_sees_no_real_token():
    """Weights of a sharp kernel that all lie on padding: intra-token statistics alone, as in torch; no NaN."""
    norm = layer(4, 1)
    with torch.no_grad():
        norm.position.copy_(torch.tensor([[-9.0, 0.0, 0.0]]))
    mask = torch.zeros(2, 5 * 9, dtype=torch.bool)
    mask[:, 0] = mask[:, -1] = True
    mask[1, 1:] = False
    x = tokens(2, 45, 4)
    other = layer(4, 1, backend="torch")
    other.load_state_dict(norm.state_dict())
    assert_close(run(norm, x, grid=(5, 9), mask=mask), run(other, x, grid=(5, 9), mask=mask), 1e-12)


@slow
def test_released_variant(launches):
    """Variances divide by C - 1, also those of prefix tokens."""
    options = {"heads": 2, "dtype": torch.float64, "num_prefix_tokens": 1}
    norm = scatter(create_norm("dtn_released", 12, **options))
    plain = create_norm("dtn_released", 12, backend="torch", **options)
    plain.load_state_dict(norm.state_dict())
    x = tokens(2, 31, 12)
    assert_close(run(norm, x, grid=(5, 6)), run(plain, x, grid=(5, 6)), 1e-12)
    assert launches == ["forward", "backward"]


@slow
@pytest.mark.parametrize("shape", [(2, 20, 6), (0, 20, 6)], ids=str)
def test_inputs_of_any_layout(shape):
    """A transposed input, an expanded gradient, an empty batch."""
    norm, x = layer(6, 2), tokens(max(shape[0], 1), *shape[1:])[: shape[0]]
    turned = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    y = norm(turned, grid=(4, 5))
    y.sum().backward()
    plain = x.clone().requires_grad_()
    twin(norm)(plain, grid=(4, 5)).sum().backward()
    assert turned.grad.shape == shape
    torch.testing.assert_close(turned.grad, plain.grad, rtol=0, atol=1e-12)


@slow
def test_a_nan_is_not_smoothed_away():
    """It stays in its sample, and a parameter's NaN in its head."""
    norm, x = layer(6, 2), tokens(2, 20, 6)
    x[1, 5, 3] = math.nan
    y = norm(x, grid=(4, 5))
    assert y[1, 5, 3].isnan() and y[0].isfinite().all()
    with torch.no_grad():
        norm.position[1, 1] = math.nan
    found = run(norm, tokens(2, 20, 6), grid=(4, 5))
    assert found["y"][..., 3:].isnan().all() and found["y"][..., :3].isfinite().all()
    assert found["position"][1].isnan().any() and found["position"][0].isfinite().all()


# ------------------------------------------------------------------------------------------------ float32


def example(grid: tuple[int, int], channels: int, heads: int, init: str = "local", shift: float = 0.0) -> list[Tensor]:
    """Operands in float32; Eqn 7 with some noise, or a wide kernel."""
    noise = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise)

    position = local_position(heads) + 0.1 * normal(heads, 3)
    if init == "wide":
        position = torch.tensor([[-0.004, 0.01, -0.02]]).expand(heads, 3)
    x = normal(1, math.prod(grid), channels) * (1 + normal(channels).abs()) + normal(channels) + shift
    return [x, 1 + 0.1 * normal(channels), 0.1 * normal(channels), normal(heads).sigmoid(), normal(heads).sigmoid(), position]


def plain_torch(parts: list[Tensor], grid: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    leaves = [part.to(dtype).requires_grad_() for part in parts]
    y = dtn_op.normalise_tokens(Operands(*leaves), Layout(grid), backend="torch")
    return y.detach(), *torch.autograd.grad(y, leaves, cotangent(y))


def errors(parts: list[Tensor], grid: tuple[int, int]) -> tuple[float, float]:
    """Errors of the kernels as shares of what is allowed: the output's largest, and the worst relative one of a gradient.

    Allowed are 8 times plain torch's errors in float32, for gradients at least 2e-6. Some gradients of a single head are small
    sums of large numbers, where torch too is not as good as that.
    """
    exact, single = plain_torch(parts, grid, torch.float64), plain_torch(parts, grid, torch.float32)
    y, kept = launch.forward(Operands(*parts), Layout(grid), None)
    grads = launch.backward(cotangent(y), kept, Operands(*parts), Layout(grid), None)
    output = float((y - exact[0]).abs().max() / (single[0] - exact[0]).abs().max()) / 8
    three = zip(grads, single[1:], exact[1:], strict=True)
    return output, max(relative(grad, true) / max(8 * relative(own, true), 2e-6) for grad, own, true in three)


def relative(grad: Tensor, true: Tensor) -> float:
    return float((grad.double() - true).norm() / true.norm())


PRECISE = [
    pytest.param((6, 7), 16, 1, {}, id="6x7"),
    pytest.param((14, 14), 432, 9, {}, marks=slow, id="A"),
    pytest.param((14, 14), 48, 1, {"shift": 1000.0}, marks=slow, id="A + 1000"),
    pytest.param((56, 56), 8, 1, {}, marks=slow, id="C"),
    pytest.param((28, 28), 8, 1, {"init": "wide"}, marks=slow, id="wide kernel"),
]


@pytest.mark.parametrize(("grid", "channels", "heads", "how"), PRECISE)
def test_three_tf32_products_are_as_good_as_float32(grid, channels, heads, how, monkeypatch):
    emulate(monkeypatch)
    output, gradient = errors(example(grid, channels, heads, **how), grid)
    assert output <= 1 and gradient <= 1


@pytest.mark.parametrize(("grid", "channels", "heads", "how"), PRECISE)
def test_plain_tf32_fails_the_same_test(grid, channels, heads, how, monkeypatch):
    """The negative control: what the test above would say if the precision were wrong."""
    emulate(monkeypatch)
    monkeypatch.setattr(configuration, "PRECISION", "tf32")
    output, gradient = errors(example(grid, channels, heads, **how), grid)
    assert output > 1 and gradient > 1


@slow
def test_half_precision_is_widened(launches):
    """bfloat16 tokens and parameters: the result is rounded once, gradients come in each one's own type."""
    norm, x = layer(6, 2, dtype=torch.bfloat16), tokens(2, 20, 6, dtype=torch.bfloat16)
    found = run(norm, x, grid=(4, 5))
    assert {value.dtype for value in found.values()} == {torch.bfloat16} and launches == ["forward", "backward"]
    expected = expect(norm, x, (4, 5))
    torch.testing.assert_close(found["y"].double(), expected["y"], rtol=2**-8, atol=1e-4)
    assert error(found["weight"], expected["weight"]) < 2**-7


# ------------------------------------------------------------------------------------------------ canaries


GUARDED = [
    pytest.param((4, 5), 6, 2, 1, False, marks=slow, id="4x5"),
    pytest.param((3, 18), 3, 1, 0, True, marks=slow, id="3x18 masked"),
    pytest.param((3, 4), 3, 1, 1, True, id="3x4 masked"),
    pytest.param((17, 19), 6, 2, 2, True, marks=slow, id="17x19 masked"),
    pytest.param((7, 9), 34, 2, 0, False, marks=slow, id="blocks that do not divide the head"),
]


@pytest.mark.parametrize(("grid", "channels", "heads", "prefix", "masked"), GUARDED)
def test_nothing_is_read_or_written_beside_a_tensor(grid, channels, heads, prefix, masked):
    """Everything lies between NaNs, and every output is NaN before it is written."""
    guards, layout = Guards(), Layout(grid, prefix)
    x, *rest = example(grid, channels, heads)
    x = torch.cat([tokens(1, prefix, channels, dtype=torch.float32), x], 1).expand(2, -1, -1).clone()
    mask = rectangles(2, grid, prefix) if masked else None
    x = x if mask is None else torch.where(mask[..., None], x, 0.0)
    with torch.no_grad():
        plain = launch.forward(Operands(x, *rest), layout, mask)
        expected = plain[0], *launch.backward(cotangent(x), plain[1], Operands(x, *rest), layout, mask)
        operands = Operands(*(guards.copy(part) for part in (x, *rest)))
        grad, mask = guards.copy(cotangent(x)), guards.copy(mask)
        with guards.around_new_tensors():
            y, kept = launch.forward(operands, layout, mask)
            grads = launch.backward(grad, kept, operands, layout, mask)
    assert len(guards.blocks) > 12
    assert guards.untouched()
    assert all(torch.equal(found, true) for found, true in zip((y, *grads), expected, strict=True))


# ------------------------------------------------------------------------------------------------ the operator


EVERY_RULE = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def arguments(masked: bool = False, affine: bool = True, dtype: torch.dtype = torch.float32) -> list:
    x, weight, bias, *rest = (part.to(dtype).requires_grad_() for part in example((3, 4), 6, 2))
    mask = rectangles(1, (3, 4)) if masked else None
    return [x, *((weight, bias) if affine else (None, None)), *rest, mask, [3, 4], 0, -1, 0, 1e-5]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, ("test_schema", "test_autograd_registration", "test_faketensor")),
        *(pytest.param(options, EVERY_RULE, marks=slow) for options in ({}, {"masked": True}, {"affine": False})),
    ],
    ids=str,
)
def test_operator_keeps_the_rules(options, rules):
    """Schema, fake kernel, autograd registration, aot_autograd with dynamic shapes."""
    torch.library.opcheck(torch.ops.dynavit.dtn_gpu, arguments(**options), test_utils=rules)


@slow
@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=str)
def test_backward_operator_keeps_the_rules(options):
    given = [part.detach() if isinstance(part, Tensor) else part for part in arguments(masked=True, **options)]
    y, *kept = torch.ops.dynavit.dtn_gpu(*given)
    torch.library.opcheck(torch.ops.dynavit.dtn_gpu_backward, (y, *kept, *given), test_utils=("test_schema", "test_faketensor"))


@slow
def test_second_derivatives_are_refused():
    x = (given := arguments())[0]
    (first,) = torch.autograd.grad(torch.ops.dynavit.dtn_gpu(*given)[0].square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r'first derivatives only.*backend="torch"'):
        first.square().sum().backward()


def test_one_node_under_compile():
    """The whole layer, masked, is one operator of ours in the graph, and gives the same numbers."""
    norm, x, mask, seen = layer(6, 2), tokens(2, 12, 6), rectangles(2, (3, 4)), []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]):
        seen.extend(str(node.target) for node in graph.graph.nodes if "dynavit" in str(node.target))
        return graph.forward

    torch.compiler.reset()
    y = torch.compile(norm, fullgraph=True, backend=keep)(x, grid=(3, 4), mask=mask)
    assert len(seen) == 1 and "dtn_gpu" in seen[0]
    torch.testing.assert_close(y, norm(x, grid=(3, 4), mask=mask))


@slow
def test_compiled_training_equals_eager():
    torch.compiler.reset()
    norm, x = layer(6, 2, num_prefix_tokens=1), tokens(2, 13, 6)
    expected = run(norm, x, grid=(3, 4))
    norm.compile(fullgraph=True, backend="aot_eager")
    assert_close(run(norm, x, grid=(3, 4)), expected, 1e-12)


@slow
def test_several_cotangents_at_once(launches):
    """As torch.autograd.functional asks for them: one forward call, a backward call for each."""
    norm, x = layer(4, 2), tokens(1, 6, 4).requires_grad_()
    y = norm(x, grid=(2, 3))
    directions = torch.stack([cotangent(y), torch.ones_like(y)])
    (together,) = torch.autograd.grad(y, x, directions, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(y, x, direction, retain_graph=True)[0] for direction in directions]
    torch.testing.assert_close(together, torch.stack(alone))
    assert launches == ["forward", *["backward"] * 4]


def test_flops_are_those_of_two_separable_statistics():
    """2 FLOPs x 2 statistics x B C T (rows + cols), and twice that in the backward pass, as on CPUs."""
    norm, x = layer(6, 2, dtype=torch.float32), tokens(2, 12, 6, dtype=torch.float32).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        norm(x, grid=(3, 4)).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 2 * 2 * 6 * 12 * (3 + 4)


@slow
def test_runs_are_equal_to_the_bit():
    """Sums of gradients are added in one order: no atomics."""
    norm, x = layer(6, 2, dtype=torch.float32), tokens(3, 40, 6, dtype=torch.float32)
    first, again = run(norm, x, grid=(2, 20)), run(norm, x, grid=(2, 20))
    assert all(torch.equal(first[key], again[key]) for key in first)
