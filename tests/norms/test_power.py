"""PowerNorm in training: its backward pass is a rule of its own, so the oracle is that rule, one number at a time."""

import copy
import math

import pytest
import torch
from torch import Tensor

from dynavit.norms import PowerNorm

DIM, HEADS, EPS, WARMUP = 6, 3, 1e-5, 3
D = DIM // HEADS


class Rule:
    """PowerNorm over a bag of tokens (lists of DIM numbers), with its memory phi, nu and k."""

    def __init__(self, weight: list[float], bias: list[float], backward: str) -> None:
        self.weight, self.bias, self.rule = weight, bias, backward
        self.phi, self.nu, self.k = [1.0] * DIM, [0.0] * DIM, 0

    def forward(self, x: list[list[float]]):
        self.k += 1
        power = [[sum(v * v for v in token[h * D : h * D + D]) / D for h in range(HEADS)] for token in x]
        u = [[token[c] / math.sqrt(p[c // D] + EPS) for c in range(DIM)] for token, p in zip(x, power, strict=True)]
        batch_phi = [sum(token[c] ** 2 for token in u) / len(u) for c in range(DIM)]
        before, after = self.phi, []
        for c in range(DIM):
            moved = before[c]
            if self.k < WARMUP:
                moved = moved * (self.k - 1) / self.k + batch_phi[c] / self.k
            after.append(0.9 * moved + 0.1 * batch_phi[c])
        self.phi = after
        used = batch_phi if self.k <= WARMUP else before
        z = [[token[c] / math.sqrt(used[c] + EPS) for c in range(DIM)] for token in u]
        in_backward = batch_phi if self.rule == "original" or self.k < WARMUP else after
        return [[t[c] * self.weight[c] + self.bias[c] for c in range(DIM)] for t in z], (x, power, z, in_backward)

    def backward(self, saved, dy: list[list[float]]):
        x, power, z, phi = saved
        count = len(x)
        leaked = [[g[c] * self.weight[c] - 0.1 * self.nu[c] * t[c] for c in range(DIM)] for g, t in zip(dy, z, strict=True)]
        self.nu = [self.nu[c] + sum(g[c] * t[c] for g, t in zip(leaked, z, strict=True)) / count for c in range(DIM)]
        du = [[g[c] / math.sqrt(phi[c] + EPS) for c in range(DIM)] for g in leaked]
        dx = []
        for token, p, g in zip(x, power, du, strict=True):
            row = []
            for c in range(DIM):
                h = c // D
                along = sum(g[i] * token[i] for i in range(h * D, h * D + D)) / D
                row.append(g[c] / math.sqrt(p[h] + EPS) - token[c] * along / math.sqrt(p[h] + EPS) ** 3)
            dx.append(row)
        dweight = [sum(g[c] * t[c] for g, t in zip(dy, z, strict=True)) for c in range(DIM)]
        return dx, dweight, [sum(g[c] for g in dy) for c in range(DIM)]


def pair(backward: str = "original") -> tuple[PowerNorm, Rule]:
    norm = PowerNorm(DIM, heads=HEADS, backward=backward, warmup=WARMUP, dtype=torch.float64)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        norm.weight.normal_(1, 0.3, generator=noise)
        norm.bias.normal_(0, 0.3, generator=noise)
    return norm, Rule(norm.weight.tolist(), norm.bias.tolist(), backward)


def numbers(seed: int) -> Tensor:
    scale = torch.linspace(0.25, 2, DIM, dtype=torch.float64)
    return torch.randn(3, 4, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale + 0.3


def close(found: Tensor, expected) -> None:
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backward", ["original", "dtn"])
def test_six_steps_follow_the_rule(backward, masked):
    norm, rule = pair(backward)
    for step in range(6):  # the warm-up ends at 3
        valid = torch.rand(3, 4, generator=torch.Generator().manual_seed(step)) > (0.4 if masked else -1)
        x, dy = numbers(step), numbers(100 + step)
        if masked:
            x[~valid] = float("nan")
        x.requires_grad_()
        norm.zero_grad()
        y = norm(x, mask=valid if masked else None)
        y.backward(dy)
        expected_y, saved = rule.forward(x[valid].tolist())
        dx, dweight, dbias = rule.backward(saved, dy[valid].tolist())
        close(y[valid], expected_y)
        close(x.grad[valid], dx)
        assert torch.all(x.grad[~valid] == 0)
        close(norm.weight.grad, dweight)
        close(norm.bias.grad, dbias)
        close(norm.running_phi, rule.phi)
        close(norm.ema_gz, rule.nu)
        assert norm.iters.item() == step + 1


def test_two_forwards_then_two_backwards():
    norm, rule = pair()
    a, b = numbers(1).requires_grad_(), numbers(2).requires_grad_()
    y_a, y_b = norm(a), norm(b)
    _, saved_a = rule.forward(a.flatten(0, 1).tolist())
    _, saved_b = rule.forward(b.flatten(0, 1).tolist())
    dy = numbers(3)
    for y, x, saved in ((y_b, b, saved_b), (y_a, a, saved_a)):
        y.backward(dy)
        close(x.grad.flatten(0, 1), rule.backward(saved, dy.flatten(0, 1).tolist())[0])
    close(norm.ema_gz, rule.nu)


def test_the_memory_of_gradients_does_not_move_without_a_backward_pass():
    norm, _ = pair()
    norm(numbers(0))
    with torch.no_grad():
        norm(numbers(1))
    assert torch.all(norm.ema_gz == 0)
    assert norm.iters.item() == 2


@pytest.mark.parametrize("deferred", [False, True])
def test_overflowing_gradients_are_not_remembered(deferred):
    norm, _ = pair()
    norm.defer_statistics(deferred)
    dy = numbers(1)
    dy[0, 0, 3] = torch.inf
    norm(numbers(0).requires_grad_()).backward(dy)
    norm.commit_statistics()
    others = torch.arange(DIM) != 3
    assert norm.ema_gz[3] == 0 and norm.ema_gz[others].isfinite().all() and torch.all(norm.ema_gz[others] != 0)


def test_second_derivatives_are_refused():
    norm, _ = pair()
    x = numbers(0).requires_grad_()
    (grad,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"PowerNorm's backward pass in training is a rule.* call \.eval\(\) first"):
        grad.sum().backward()


def test_unknown_rule():
    with pytest.raises(ValueError, match="'original' or 'dtn'; got 'exact'"):
        PowerNorm(DIM, backward="exact")


# torch 2.13's tracer itself instantiates autograd.Function, and inductor uses torch.jit; both warn.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("backward", ["original", pytest.param("dtn", marks=pytest.mark.slow)])
def test_compiled_steps_move_the_same_memory(backward, backend):
    """Through the warm-up, and with two forwards before each backward."""
    torch.compiler.reset()
    eager, _ = pair(backward)
    compiled = copy.deepcopy(eager)
    fast = torch.compile(compiled, fullgraph=True, backend=backend)
    for step in range(3):
        grads = []
        for layer, module in ((eager, eager), (fast, compiled)):
            module.zero_grad()
            x = numbers(step).requires_grad_()
            (layer(x) + layer(2 - x)).backward(numbers(100 + step))
            grads.append([x.grad, module.weight.grad, module.bias.grad])
        torch.testing.assert_close(grads[1], grads[0])
        torch.testing.assert_close(compiled.state_dict(), eager.state_dict())
    assert compiled.iters.item() == 6
    assert compiled.ema_gz.abs().max() > 0
