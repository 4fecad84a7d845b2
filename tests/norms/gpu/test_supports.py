"""Who computes a call: which ones the GPU kernels take, why not the others, and that nothing else asks for triton."""

import ast
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import dynavit
from dynavit.norms import DynamicTokenNorm
from dynavit.norms.dtn.gpu import gate, supports
from dynavit.norms.dtn.math import Layout, Operands
from dynavit.norms.dtn.op import normalise_tokens

PACKAGE = Path(dynavit.__file__).parent


@pytest.fixture
def pretended_gpu(monkeypatch):
    """A machine with a GPU and triton; tensors on it are fake, so that nothing is computed."""
    monkeypatch.setattr(gate, "_find_obstacle", lambda: "")
    monkeypatch.setattr(supports, "_capability", lambda device: (8, 0))
    with FakeTensorMode():
        yield torch.device("cuda")


def operands(device: torch.device | str = "cuda", dtype: torch.dtype = torch.float32, channels: int = 6, **other) -> Operands:
    x, c, h = torch.empty(2, 20, channels, device=device, dtype=dtype), channels, 2
    parts = [torch.empty(*shape, device=device) for shape in ((c,), (c,), (h,), (h,), (h, 3))]
    return Operands(x, *parts)._replace(**other)


GRID = Layout((4, 5))


def test_a_grid_on_a_gpu_is_taken(pretended_gpu):
    assert supports.supports(operands(), GRID) == (True, "")
    assert supports.supports(operands(), Layout((4, 5), prefix=0, radius=2, ddof=1)) == (True, "")
    assert supports.supports(operands(), Layout((64, 64)))[0]


@pytest.mark.parametrize(
    ("given", "layout", "reason"),
    [
        ({"device": "cpu"}, GRID, "the tokens are not on a CUDA GPU"),
        ({"dtype": torch.float64}, GRID, "float64 has no kernel"),
        ({"position": None}, GRID, "a uniform average is one mean"),
        ({}, Layout((20,)), "sequences have no kernel"),
        ({}, Layout((4, 4), pool=2), "pooled statistics have no kernel"),
        ({}, Layout((4, 65)), "a side of the grid is longer than 64 tokens"),
        ({"channels": 4098}, GRID, "more than 4096 channels"),
    ],
    ids=lambda part: str(part)[:30],
)
def test_what_is_left_to_torch(pretended_gpu, given, layout, reason):
    taken, why = supports.supports(operands(**given), layout)
    assert not taken and reason in why


def test_a_gpu_without_tf32(pretended_gpu, monkeypatch):
    monkeypatch.setattr(supports, "_capability", lambda device: (7, 5))
    assert "compute capability below 8.0" in supports.supports(operands(), GRID)[1]


@pytest.mark.parametrize(
    ("cuda", "hip", "installed", "reason"),
    [
        (False, None, True, "torch finds no CUDA GPU"),
        (True, "6.4", True, "NVIDIA GPUs only"),
        (True, None, False, "the extra \\[gpu\\]: pip install 'dynavit\\[gpu\\]'"),
        (True, None, True, "^$"),
    ],
)
def test_what_the_gate_says(monkeypatch, cuda, hip, installed, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(gate.importlib.util, "find_spec", lambda name: installed or None)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(gate._find_obstacle.__wrapped__())


class Seen(TorchDispatchMode):
    """The names of our operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "dynavit":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


def on_gpu(norm: DynamicTokenNorm) -> DynamicTokenNorm:
    """With fake parameters; they are not moved there, since a torch without CUDA cannot copy even those."""
    for name, parameter in norm.named_parameters():
        there = torch.empty(parameter.shape, device="cuda", dtype=parameter.dtype)
        setattr(norm, name, torch.nn.Parameter(there, requires_grad=False))
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_on_a_gpu_takes_the_kernel(pretended_gpu, dtype):
    """Also in half precision, which is widened; the result stands where x does."""
    norm = on_gpu(DynamicTokenNorm(6, heads=2, num_prefix_tokens=1, dtype=dtype))
    x = torch.empty(2, 21, 6, device=pretended_gpu, dtype=dtype)
    with torch.no_grad(), Seen() as seen:
        y = norm(x, grid=(4, 5))
    assert seen.names == ["dtn_gpu"]
    assert (y.shape, y.dtype, y.device.type) == ((2, 21, 6), dtype, "cuda")


def test_masks_and_the_way_out(pretended_gpu):
    """A mask goes along; backend="torch" stays plain, here as far as a torch without CUDA lets it go."""
    mask = torch.ones(2, 20, dtype=torch.bool, device=pretended_gpu)
    with torch.no_grad(), Seen() as seen:
        assert normalise_tokens(operands(), GRID, mask).shape == (2, 20, 6)
        with pytest.raises(RuntimeError, match="not linked with support for cuda"):
            normalise_tokens(operands(), GRID, mask, backend="torch")
    assert seen.names == ["dtn_gpu"]


def test_shapes_of_the_backward_operator(pretended_gpu):
    """Each gradient has its operand's shape, type and device; without weight and bias theirs are empty."""
    given = operands()._replace(position=torch.empty(2, 3, device="cuda", dtype=torch.bfloat16))
    numbers = ([4, 5], 0, -1, 0, 1e-5)
    for affine in (True, False):
        parts = list(given[:6]) if affine else [given.x, None, None, *given[3:6]]
        y, *kept = torch.ops.dynavit.dtn_gpu(*parts, None, *numbers)
        grads = torch.ops.dynavit.dtn_gpu_backward(y, *kept, *parts, None, *numbers)
        for grad, part in zip(grads, parts, strict=True):
            shape, dtype = ((0,), torch.float32) if part is None else (part.shape, part.dtype)
            assert (tuple(grad.shape), grad.dtype, grad.device.type) == (tuple(shape), dtype, "cuda")


# ------------------------------------------------------------------------------------------------ one door


def imported(file: Path) -> set[str]:
    """Modules named in the import statements of a file, relative ones with their dots."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found |= {base, *(f"{base}.{alias.name}".replace("..", ".") if base == "." else base for alias in node.names)}
    return found


def test_triton_enters_by_one_door():
    kernels = PACKAGE / "norms/dtn/gpu/kernels"
    asks = {file for file in PACKAGE.rglob("*.py") if any(name.split(".")[0] == "triton" for name in imported(file))}
    assert asks and all(file.parent == kernels for file in asks)
    doors = {file.name for file in kernels.parent.glob("*.py") if {".kernels"} & imported(file)}
    assert doors == {"gate.py"}


def test_kernels_are_all_that_their_files_hold():
    """`@triton.jit` functions, imports and docstrings."""
    for file in (PACKAGE / "norms/dtn/gpu/kernels").glob("[a-z]*.py"):
        for node in ast.parse(file.read_text()).body:
            jit = isinstance(node, ast.FunctionDef) and [ast.unparse(part) for part in node.decorator_list] == ["triton.jit"]
            assert jit or isinstance(node, ast.Import | ast.ImportFrom | ast.Expr), f"{file.name}:{node.lineno}"
