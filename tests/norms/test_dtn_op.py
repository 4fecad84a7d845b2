"""DTN's C kernel as torch sees it: one operator that compiles, counts and exports."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dynavit.norms import DynamicTokenNorm
from norms.dtn_cases import assert_close, cotangent, expect, layer, run, tokens

# torch 2.13's tracer itself instantiates autograd.Function, and inductor and the ONNX exporter use torch.jit; all warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

SHAPES = [
    pytest.param((4, 9), {}, id="4x9"),
    pytest.param((7, 5), {"num_prefix_tokens": 1}, id="7x5 with a class token"),
    pytest.param((40,), {"ndim": 1, "kernel": "band", "radius": 4}, id="band"),
    pytest.param((6, 6), {"affine": False, "average": "window"}, id="window without affine"),
]


def slow(case):
    return pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)


class Calls(TorchDispatchMode):
    """The arguments with which our operators were called, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, tuple] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "dynavit":
            self.seen[func._opname] = tuple(part.detach() if isinstance(part, Tensor) else part for part in args)
        return func(*args, **(kwargs or {}))


def arguments(grid: tuple[int, ...] = (4, 5), dtype: torch.dtype = torch.float64, **options) -> dict[str, tuple]:
    """Arguments that a layer hands to the operators, forward ("dtn") and backward."""
    norm = layer(6, 2, dtype=dtype, **options)
    x = tokens(2, norm.num_prefix_tokens + math.prod(grid), 6, dtype=dtype).requires_grad_()
    with Calls() as calls:
        norm(x, grid=grid).sum().backward()
    return calls.seen


def with_gradients(parts: tuple) -> list:
    return [part.clone().requires_grad_() if isinstance(part, Tensor) and part.is_floating_point() else part for part in parts]


# ------------------------------------------------------------------------------------------------ the operator


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, torch.float32),
        ({"affine": False}, torch.float64),
        ({"grid": (20,), "ndim": 1}, torch.float32),
        ({"num_prefix_tokens": 1}, torch.float64),
        ({"average": "window"}, torch.float64),
    ],
    ids=str,
)
def test_operator_keeps_the_rules(options, dtype):
    """Schema, fake kernel, autograd registration, static and dynamic shapes through aot_autograd."""
    torch.library.opcheck(torch.ops.dynavit.dtn, with_gradients(arguments(dtype=dtype, **options)["dtn"]))


def test_backward_operator_keeps_the_rules():
    """It has no derivative of its own, so only its schema and its fake kernel are asked."""
    rules = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.dynavit.dtn_backward, arguments()["dtn_backward"], test_utils=rules)


def test_operator_refuses_second_derivatives():
    """As the layer does, with the same words."""
    x, *rest = with_gradients(arguments()["dtn"])
    (first,) = torch.autograd.grad(torch.ops.dynavit.dtn(x, *rest)[0].square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r'first derivatives only.*backend="torch"'):
        first.square().sum().backward()


# ------------------------------------------------------------------------------------------------- compilation


def check_compiled(grid: tuple[int, ...], options: dict, backend: str) -> None:
    torch.compiler.reset()
    norm = layer(15, 3, **options)
    x = tokens(2, norm.num_prefix_tokens + math.prod(grid), 15)
    expected = run(norm, x, grid=grid)
    norm.zero_grad()
    leaf = x.clone().requires_grad_()
    fast = torch.compile(norm, fullgraph=True, backend=backend)
    y = fast(leaf, grid=grid)
    y.backward(cotangent(y))
    found = {"y": y.detach(), "x": leaf.grad, **{key: p.grad for key, p in norm.named_parameters()}}
    assert_close(found, expected, 1e-11)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, grid=grid), expected["y"])


@pytest.mark.parametrize(("grid", "options"), [slow(SHAPES[0]), SHAPES[1], *map(slow, SHAPES[2:])])
def test_compiles_to_one_graph(grid, options):
    """Compiled with the C kernel inside, forward and backward equal eager."""
    check_compiled(grid, options, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "options"), SHAPES)
def test_inductor(grid, options):
    check_compiled(grid, options, "inductor")


def graphs(norm: DynamicTokenNorm, x: Tensor) -> list[str]:
    """The operators of the graphs that torch.compile makes of a layer."""
    found = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]):
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compiler.reset()
    torch.compile(norm, fullgraph=True, backend=keep)(x)
    return found


def test_compiled_graph_holds_the_operator():
    """Compilation sees one node, not the trace of the torch version; backend="torch" stays plain."""
    x = tokens(2, 16, 12)
    assert any("dynavit.dtn" in name for name in graphs(layer(12, 4), x))
    assert not any("dynavit" in name for name in graphs(layer(12, 4, backend="torch"), x))


@pytest.mark.parametrize(("prefix", "given"), [pytest.param(0, True, marks=pytest.mark.slow), (1, False)])
def test_compiled_layer_at_changing_resolutions(prefix, given):
    """From the second resolution on torch.compile treats sizes as symbols, also the square that a layer guesses."""
    torch.compiler.reset()
    norm = layer(12, 4, num_prefix_tokens=prefix)
    fast = torch.compile(norm, fullgraph=True, backend="aot_eager")
    for side in (4, 5, 6):
        x, grid = tokens(2, prefix + side**2, 12), (side, side) if given else None
        torch.testing.assert_close(fast(x, grid=grid), norm(x, grid=grid))


def test_compiled_batch_sizes_share_one_graph():
    """A dynamic batch compiles once."""
    torch.compiler.reset()
    norm, compiled = layer(12, 4), []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]):
        compiled.append(graph)
        return graph.forward

    fast = torch.compile(norm, fullgraph=True, dynamic=True, backend=keep)
    for samples in (2, 3, 5):
        x = tokens(samples, 16, 12)
        torch.testing.assert_close(fast(x), norm(x))
    assert len(compiled) == 1


# ------------------------------------------------------------------------------------------------------ export


class OnGrid(torch.nn.Module):
    """As inside a model: the grid is known, tokens are the only input."""

    def __init__(self, norm: DynamicTokenNorm, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.norm, self.grid = norm, grid

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, grid=self.grid)


BATCH = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}


# The first is exported by test_contract.py, the second inside a model by deploy/test_export.py.
@pytest.mark.parametrize(("grid", "options"), [*map(slow, SHAPES[:3]), SHAPES[3]])
def test_export_has_no_operator_of_ours(grid, options):
    """A program that runs without dynavit: plain products, for any batch size."""
    norm = layer(15, 3, **options).eval()
    count = norm.num_prefix_tokens + math.prod(grid)
    program = torch.export.export(OnGrid(norm, grid), (tokens(2, count, 15),), dynamic_shapes=BATCH)
    assert not [node.name for node in program.graph.nodes if "dynavit" in str(node.target)]
    for samples in (1, 5):
        x = tokens(samples, count, 15)
        torch.testing.assert_close(program.module()(x), norm(x, grid=grid), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("grid", "options"), [slow(SHAPES[0]), SHAPES[2]])
def test_export_with_a_mask(grid, options):
    """Padding is an input like any other, of a dynamic batch too."""
    norm = layer(15, 3, **options).eval()
    count = norm.num_prefix_tokens + math.prod(grid)

    class Masked(OnGrid):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.norm(x, grid=self.grid, mask=mask)

    example = (tokens(2, count, 15), torch.ones(2, count, dtype=torch.bool))
    program = torch.export.export(Masked(norm, grid), example, dynamic_shapes=BATCH | {"mask": BATCH["x"]})
    assert not [node.name for node in program.graph.nodes if "dynavit" in str(node.target)]
    x, valid = tokens(5, count, 15), torch.rand(5, count, generator=torch.Generator().manual_seed(0)) > 0.3
    torch.testing.assert_close(program.module()(x, valid), norm(x, grid=grid, mask=valid), rtol=1e-11, atol=1e-11)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of onnxscript and the exporter itself
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("grid", "options"), [SHAPES[0], *map(slow, SHAPES[1:])])
def test_onnx(grid, options, tmp_path):
    """Exported with a dynamic batch, run by onnxruntime, equal to the layer."""
    import onnxruntime

    norm = layer(15, 3, dtype=torch.float32, **options).eval()
    count = norm.num_prefix_tokens + math.prod(grid)
    path = tmp_path / "norm.onnx"
    example = tokens(2, count, 15, dtype=torch.float32)
    torch.onnx.export(OnGrid(norm, grid).eval(), (example,), path, dynamo=True, dynamic_shapes=BATCH, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for samples in (1, 2, 7):
        x = tokens(samples, count, 15, seed=samples, dtype=torch.float32)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), norm(x, grid=grid).detach(), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------- FLOPs


def flops(norm: DynamicTokenNorm, x: Tensor, backward: bool = False, **call) -> int:
    x = x.clone().requires_grad_(backward)
    with FlopCounterMode(display=False) as counter:
        y = norm(x, **call)
        if backward:
            y.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("grid", [(14, 14), (7, 11), (2, 16)], ids=str)
@pytest.mark.parametrize("init", ["local", "trunc_normal"])
def test_flops_are_those_of_two_separable_statistics(grid, init):
    """2 FLOPs x 2 statistics x B C T (rows + cols), whatever the C kernel skips, and the same for plain torch."""
    count = grid[0] * grid[1]
    x = tokens(3, count, 18, dtype=torch.float32)
    expected = 2 * 2 * 3 * 18 * count * (grid[0] + grid[1])
    for backend in ("auto", "torch"):
        norm = DynamicTokenNorm(18, heads=9, init=init, backend=backend)
        with torch.no_grad():
            assert flops(norm, x, grid=grid) == expected
        assert flops(norm, x, grid=grid) == expected


def test_flops_of_the_backward_pass():
    """Transposed kernels and kernel gradients: twice the forward pass, in both ways."""
    x = tokens(3, 77, 18, dtype=torch.float32)
    expected = 3 * 2 * 2 * 3 * 18 * 77 * (7 + 11)
    for backend in ("auto", "torch"):
        norm = DynamicTokenNorm(18, heads=9, backend=backend)
        assert flops(norm, x, backward=True, grid=(7, 11)) == expected


def test_flops_of_sequences():
    """Dense 2 x 2 x B C T²; a band 2 x 2 x B C T (2 r + 1)."""
    x = tokens(2, 100, 6, dtype=torch.float32)
    assert flops(DynamicTokenNorm(6, heads=2, ndim=1), x) == 2 * 2 * 2 * 6 * 100 * 100
    assert flops(DynamicTokenNorm(6, heads=2, ndim=1, kernel="band", radius=8), x) == 2 * 2 * 2 * 6 * 100 * 17


def test_prefix_tokens_cost_no_products():
    norm = DynamicTokenNorm(6, heads=2, num_prefix_tokens=3)
    assert flops(norm, tokens(2, 19, 6, dtype=torch.float32)) == 2 * 2 * 2 * 6 * 16 * 8


# ---------------------------------------------------------------------------------------- other torch machinery


def test_under_autocast_the_c_kernel_stays_exact(way):
    """bfloat16 tokens from an autocast region: statistics in float32, the output in bfloat16, one rounding."""
    norm = layer(36, 4, dtype=torch.float32, **way)
    x = tokens(2, 36, 36, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(norm, x, grid=(4, 9))
    assert found["y"].dtype == found["x"].dtype == torch.bfloat16
    expected = expect(norm, x, (4, 9))
    torch.testing.assert_close(found["y"].double(), expected["y"], rtol=2**-8, atol=1e-4)
    assert found["position"].dtype == torch.float32


def test_mixed_parameter_types(way):
    """Half-precision parameters on single-precision tokens: gradients come back in each parameter's own type."""
    norm = layer(36, 4, dtype=torch.bfloat16, **way)
    found = run(norm, tokens(2, 36, 36, dtype=torch.float32), grid=(4, 9))
    assert found["y"].dtype == torch.float32
    assert all(found[key].dtype == torch.bfloat16 for key, _ in norm.named_parameters())


def test_training_moves_every_parameter(way):
    """A few steps of SGD on a fixed target lower the loss."""
    norm, x = layer(15, 3, **way), tokens(4, 20, 15)
    target, before = layer(15, 3, seed=9)(x, grid=(4, 5)).detach(), {k: v.clone() for k, v in norm.state_dict().items()}
    optimiser, losses = torch.optim.SGD(norm.parameters(), lr=0.3), []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (norm(x, grid=(4, 5)) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(not torch.equal(before[key], value) for key, value in norm.state_dict().items())


def test_calls_from_several_python_threads():
    """The C kernel runs without Python's lock; calls at the same time do not share scratch memory."""
    norm = layer(48, 4, dtype=torch.float32)
    inputs = [tokens(3, side**2, 48, seed=side, dtype=torch.float32) for side in (7, 9, 11, 14)] * 4
    with torch.no_grad():
        alone = [norm(x) for x in inputs]

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():  # grad mode belongs to a thread
            return norm(x)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(call, inputs))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize(("grid", "options"), SHAPES)
def test_a_call_that_nobody_differentiates_gives_the_same_tokens(grid, options):
    norm = layer(6, 2, **options)
    x = tokens(2, norm.num_prefix_tokens + math.prod(grid), 6)
    with torch.no_grad():
        y = norm(x, grid=grid)
    assert torch.equal(y, norm(x, grid=grid))


class Doubled(torch.nn.Module):
    def forward(self, number: Tensor) -> Tensor:
        return 2 * number


@pytest.mark.parametrize("name", ["weight", "mean_logit", "position"])
def test_a_parameter_that_is_computed_is_used(name):
    """`torch.nn.utils.parametrize` takes a parameter out of the layer's own."""
    norm, x = layer(6, 2), tokens(2, 20, 6)
    torch.nn.utils.parametrize.register_parametrization(norm, name, Doubled())
    plain = layer(6, 2)
    with torch.no_grad():
        getattr(plain, name).mul_(2)
    assert torch.equal(norm(x, grid=(4, 5)), plain(x, grid=(4, 5)))
