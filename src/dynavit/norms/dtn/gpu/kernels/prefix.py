"""Prefix tokens, which lie outside the grid: LayerNorm, forward and backward."""

import triton
import triton.language as tl


@triton.jit
def prefix_forward(x, y, weight, bias, tokens, prefix, divisor, eps, C: tl.constexpr, CP: tl.constexpr):
    """Program: (sample, prefix token)."""
    sample = tl.program_id(0).to(tl.int64)
    at = (sample * (prefix + tokens) + tl.program_id(1)) * C
    c = tl.arange(0, CP)
    inside = c < C
    unit, _ = layer_norm(tl.load(x + at + c, mask=inside, other=0.0), inside, divisor, eps, C)
    if weight is not None:
        unit = unit * tl.load(weight + c, mask=inside, other=0.0)
    if bias is not None:
        unit = unit + tl.load(bias + c, mask=inside, other=0.0)
    tl.store(y + at + c, unit, mask=inside)


@triton.jit
def prefix_backward(x, gy, gx, weight, affine, tokens, prefix, divisor, eps, slots, C: tl.constexpr, CP: tl.constexpr):
    """gx of the prefix tokens of one sample, and their share of the gradients of weight and bias, in the sample's last slot."""
    sample = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CP)
    inside = c < C
    dweight = tl.zeros((CP,), x.dtype.element_ty)
    dbias = tl.zeros((CP,), x.dtype.element_ty)
    for token in range(prefix):
        at = (sample * (prefix + tokens) + token) * C
        unit, scale = layer_norm(tl.load(x + at + c, mask=inside, other=0.0), inside, divisor, eps, C)
        g = tl.load(gy + at + c, mask=inside, other=0.0)
        dweight += g * unit
        dbias += g
        if weight is not None:
            g = g * tl.load(weight + c, mask=inside, other=0.0)
        along = tl.sum(g * unit, 0) / divisor
        tl.store(gx + at + c, scale * (g - tl.sum(g, 0) / C - along * unit), mask=inside)
    if affine is not None:
        at = affine + ((sample + 1) * slots - 1) * 2 * C + c
        tl.store(at, dweight, mask=inside)
        tl.store(at + C, dbias, mask=inside)


@triton.jit
def layer_norm(v, inside, divisor, eps, C: tl.constexpr):
    """The normalised token (CP,) and 1 / sqrt(var + eps). The mean is taken twice: of what rounding left, too."""
    v = tl.where(inside, v - tl.sum(v, 0) / C, 0.0)
    v = tl.where(inside, v - tl.sum(v, 0) / C, 0.0)
    scale = 1 / tl.sqrt(tl.sum(v * v, 0) / divisor + eps)
    return v * scale, scale
