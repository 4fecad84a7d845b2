"""Memory of DTN: no matrix over pairs of tokens, and only the input kept for the backward pass."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dynavit.norms import create_norm
from norms import dtn_oracle as oracle
from norms.dtn_cases import choose, layer, tokens


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returned, and the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.numel, self.ops = 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.ops.add(str(func))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out


GRID, DIM, HEADS = (32, 32), 4, 2
TOKENS = GRID[0] * GRID[1]
PAIRS = TOKENS**2  # 1,048,576: any T x T matrix has at least so many elements


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["dtn", "dtn_released"])
def test_no_tensor_of_all_pairs_of_tokens(way, masked, name):
    """2-D, forward and backward: every tensor is far smaller than T²; the largest is a few copies of x or of the kernels."""
    norm = create_norm(name, DIM, heads=HEADS, **way)
    x = tokens(1, TOKENS, DIM, dtype=torch.float32).requires_grad_()
    valid = torch.rand(1, TOKENS, generator=torch.Generator().manual_seed(0)) > 0.3
    with Largest() as seen:
        norm(x, grid=GRID, mask=valid if masked else None).sum().backward()
    assert x.grad is not None and norm.position.grad.any()
    assert seen.numel < PAIRS
    assert seen.numel <= 4 * max(x.numel(), norm.position.shape[0] * GRID[0] ** 2)


def test_the_meter_sees_such_a_matrix():
    """The oracle does build P; forward and backward are both watched."""
    position = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    with Largest() as seen:
        oracle.positional(position, (4, 4))
    assert seen.numel >= 256
    with Largest() as seen:
        layer(4, 2)(tokens(1, 16, 4)).sum().backward()
    assert {"dynavit.dtn.default", "dynavit.dtn_backward.default"} <= seen.ops


def saved_bytes(norm: nn.Module, x: Tensor, **call) -> int:
    """Bytes that autograd keeps between forward and backward; each storage counts once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = norm(x, **call)
    assert y.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("options", [{}, {"average": "uniform"}, {"average": "window"}, {"num_prefix_tokens": 1}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["native", "recomputed"])
def test_only_the_input_is_kept(name, masked, options, monkeypatch):
    """The fast ways keep x and little else: at most 1.2 times what LayerNorm keeps, masked or not."""
    norm = layer(64, 4, dtype=torch.float32, **options, **choose(name, monkeypatch))
    count = 196 + norm.num_prefix_tokens
    x = tokens(4, count, 64, dtype=torch.float32)
    valid = torch.ones(4, count, dtype=torch.bool) if masked else None
    bytes_of_layer_norm = saved_bytes(nn.LayerNorm(64), x)
    assert x.nbytes < bytes_of_layer_norm < 1.1 * x.nbytes
    assert saved_bytes(norm, x, grid=(14, 14), mask=valid) <= 1.2 * bytes_of_layer_norm


def test_released_layer_keeps_little_more():
    """Its RMS per head comes first and is plain torch: at most three times LayerNorm's."""
    x = tokens(4, 196, 64, dtype=torch.float32)
    norm = create_norm("dtn_released", 64, heads=4)
    assert saved_bytes(norm, x, grid=(14, 14)) <= 3 * saved_bytes(nn.LayerNorm(64), x)
