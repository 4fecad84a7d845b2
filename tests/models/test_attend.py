"""Attention in the form that is fastest: the equations, and when they are written out."""

import math

import pytest
import torch
import torch.nn.functional as F

from dynavit.models import attend as attend_module
from dynavit.models.attend import attend


def made_up(dtype, t=5, n=7, batch=2):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(batch, 3, length, 4, generator=generator, dtype=torch.float64) for length in (t, n, n)]
    return [part.to(dtype).requires_grad_() for part in parts]


def plainly(q, k, v, bias=0.0, scale=None):
    """softmax(scale q k^T + bias) v, in float64."""
    q, k, v = (part.detach().double().requires_grad_() for part in (q, k, v))
    scores = torch.einsum("bhtd,bhnd->bhtn", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale) + bias
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    y = torch.einsum("bhtn,bhnd->bhtd", weights, v)
    return [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("written_out", [False, True])
def test_both_forms_are_those_of_the_equations(monkeypatch, written_out, biased, scale):
    monkeypatch.setattr(attend_module, "_fused_is_slow", lambda q, k: written_out)
    q, k, v = made_up(torch.float64)
    bias = torch.randn(2, 3, 5, 7, dtype=torch.float64) if biased else None
    y = attend(q, k, v, mask=bias, scale=scale)
    found = [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]
    for one, other in zip(found, plainly(q, k, v, 0.0 if bias is None else bias, scale), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_the_equations(dtype):
    q, k, v = made_up(dtype, batch=4)
    y = attend(q, k, v)
    assert y.dtype == dtype
    found = [y, *torch.autograd.grad(y.square().sum(), (q, k, v))]
    for one, other in zip(found, plainly(q, k, v), strict=True):
        assert (one.double() - other).abs().max() < 0.02 * other.abs().max()


def fused_calls(monkeypatch):
    calls, fused = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: (calls.append(1), fused(*a, **k))[1])
    return calls


def test_written_out_only_where_the_fused_gradient_is_slow(monkeypatch):
    calls = fused_calls(monkeypatch)
    attend(*made_up(torch.bfloat16))
    assert not calls
    attend(*made_up(torch.float32))
    with torch.no_grad():
        attend(*made_up(torch.bfloat16))
    attend(*made_up(torch.bfloat16), mask=torch.ones(2, 1, 1, 7, dtype=torch.bool))  # hidden keys
    monkeypatch.setattr(attend_module, "KEPT", 34)  # of 5 * 7 scores
    attend(*made_up(torch.bfloat16))
    assert len(calls) == 4


def test_weights_are_dropped_when_written_out(monkeypatch):
    calls = fused_calls(monkeypatch)
    q, k, _ = made_up(torch.bfloat16, n=4000)
    ones = torch.ones(2, 3, 4000, 4, dtype=torch.bfloat16)
    y = attend(q, k, ones, drop=0.5).float()
    assert not calls
    assert y.mean().item() == pytest.approx(1, abs=0.05)  # those that are left weigh twice as much
    assert y.std() > 0.005
