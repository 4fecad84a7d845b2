"""Layers, tokens and the comparison with the oracle that the tests of DTN share."""

import math

import torch
from torch import Tensor, nn

from dynavit.norms import DynamicTokenNorm
from dynavit.norms.dtn.native import build, kernel
from norms import dtn_oracle as oracle

# The three ways a call can be computed: the C kernel, plain torch, and plain torch run again in the backward pass.
WAYS = ("native", "torch", "recomputed")


def choose(way: str, monkeypatch) -> dict[str, str]:
    """The options that make a layer take this way."""
    if way == "native":
        assert build.native_kernel_available(), "these tests need a C compiler"
    if way == "recomputed":
        monkeypatch.setattr(build, "native_kernel_available", lambda: False)
        monkeypatch.setattr(kernel, "_run", None)  # a call would fail
    return {"backend": "torch"} if way == "torch" else {}


def scatter(norm: nn.Module, seed: int = 1, size: float = 0.3) -> nn.Module:
    """Move the parameters from their start, where a gain of 1 or equal heads could hide a mistake."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += (size * torch.randn(parameter.shape, generator=noise, dtype=torch.float64)).to(parameter)
    return norm


def layer(dim: int, heads: int = 1, seed: int = 1, **options) -> DynamicTokenNorm:
    options = {"dtype": torch.float64} | options
    return scatter(DynamicTokenNorm(dim, heads=heads, **options), seed)


def tokens(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Tokens whose samples and channels have different means and scales."""
    noise = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.5, 2.0, shape[-1], dtype=torch.float64)
    offset = torch.linspace(-1.0, 1.0, shape[0], dtype=torch.float64).reshape(-1, *[1] * (len(shape) - 1))
    return (torch.randn(shape, generator=noise, dtype=torch.float64) * scale + offset).to(dtype)


def cotangent(y: Tensor) -> Tensor:
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(y.dtype)


Result = dict[str, Tensor]  # "y", "x" for the input's gradient, and each parameter's gradient under its name


def run(norm: nn.Module, x: Tensor, **call) -> Result:
    """The layer's output and all its gradients."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    norm.zero_grad()
    y = norm(x, **call)
    y.backward(cotangent(y))
    return {"y": y.detach(), "x": x.grad, **{key: p.grad.clone() for key, p in norm.named_parameters() if p.grad is not None}}


def expect(
    norm: DynamicTokenNorm, x: Tensor, grid: tuple[int, ...], mask: Tensor | None = None, radius: int | None = None
) -> Result:
    """The oracle's output and gradients for the parameters and options of a layer, in float64.

    `radius` is the one a learned kernel is cut at; an averaging window has it from the layer.
    """
    x = x.detach().double().requires_grad_()
    leaves = {key: p.detach().double().requires_grad_() for key, p in norm.named_parameters()}
    patches = None if mask is None else mask[:, norm.num_prefix_tokens :]
    if norm.average == "learned":
        P = oracle.positional(leaves["position"], grid, patches, radius)
    else:
        P = oracle.box(norm.heads, grid, norm.radius if norm.average == "window" else None, patches)
    lam = [
        leaves[name].sigmoid() if name in leaves else torch.full((norm.heads,), fixed, dtype=torch.float64)
        for name, fixed in (("mean_logit", norm.fixed_mean_lambda), ("var_logit", norm.fixed_var_lambda))
    ]
    affine = (leaves.get("weight"), leaves.get("bias"))
    y = oracle.dtn(x, P, *lam, *affine, prefix=norm.num_prefix_tokens, mask=mask, eps=norm.eps)
    y.backward(cotangent(y))
    return {"y": y.detach(), "x": x.grad, **{key: leaf.grad for key, leaf in leaves.items()}}


def error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number expected. Gradients that vanish are measured absolutely."""
    largest = float(expected.abs().max())
    return float((found.double() - expected).abs().max()) / (largest if largest > 1e-9 else 1.0)


def assert_close(found: Result, expected: Result, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    errors = {key: error(found[key], expected[key]) for key in expected}
    assert all(found[key].shape == expected[key].shape for key in expected)
    assert max(errors.values(), key=lambda e: math.inf if math.isnan(e) else e) <= tolerance, errors


def finite(*results: Result) -> bool:
    return all(bool(value.isfinite().all()) for result in results for value in result.values())
