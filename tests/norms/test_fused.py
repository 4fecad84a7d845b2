"""Norms in few passes: the same numbers as the plain formula, and few tensors as large as the tokens."""

import copy

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dynavit.norms import fused, gn, in_, sn
from dynavit.norms.statistics import running
from norms.test_contract import make, run, tokens

FUSED = ("bn", "gn", "in", "repbn", "prepbn", "sn")


class LargeTensors(TorchDispatchMode):
    """Counts the memories of at least `size` numbers that operations make."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.kept, self.known = size, [], set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        for part in tree_leaves((arguments, options)):
            if isinstance(part, Tensor):
                self.known.add(part.untyped_storage().data_ptr())
        result = function(*arguments, **(options or {}))
        for part in tree_leaves(result):
            if isinstance(part, Tensor) and part.numel() >= self.size and part.untyped_storage().data_ptr() not in self.known:
                self.kept.append(part)  # so that no later one gets the same address
                self.known.add(part.untyped_storage().data_ptr())
        return result


# The result and the input's gradient are two. LayerNorm beside it and its gradient are two more, and
# the sum of both gradients is a third, as this counter holds on to them.
@pytest.mark.parametrize(
    ("name", "expected"),
    [("bn", 2), ("gn", 2), ("in", 2), ("repbn", 2), ("prepbn", 5), ("sn", 5), ("zscore", 3), ("minmax", 3), ("un", 3)],
)
def test_few_tensors_as_large_as_the_tokens(name, expected):
    norm, x = make(name), tokens().requires_grad_()
    norm(x)
    with LargeTensors(x.numel()) as large:
        y = norm(x)
        torch.autograd.grad(y, [x, *norm.parameters()], torch.ones_like(x))
    assert len(large.kept) - 1 <= expected  # without the ones


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("affine", [True, False])
def test_equals_the_plain_formula(name, affine, monkeypatch):
    norm, x = make(name, affine=affine, dtype=torch.float64), tokens(dtype=torch.float64)
    plain = copy.deepcopy(norm)
    found = run(norm, x)
    for module in (gn, in_, sn, running):
        monkeypatch.setattr(module, "may_fuse", lambda _: False)
    torch.testing.assert_close(found, run(plain, x))
    torch.testing.assert_close(norm.state_dict(), plain.state_dict())


@pytest.mark.parametrize("name", FUSED)
def test_a_frozen_input_or_norm_gets_no_gradient(name):
    norm, x = make(name), tokens()
    norm(x).sum().backward()
    assert norm.weight.grad is not None
    frozen = make(name).requires_grad_(False)
    assert torch.autograd.grad(frozen(x.requires_grad_()).square().sum(), x)[0].any()


def test_compilers_get_the_plain_formula():
    assert fused.may_fuse(tokens()) and not fused.may_fuse(tokens()[:0])
    assert not torch.func.vmap(lambda sample: torch.tensor(fused.may_fuse(sample)))(tokens()).any()
