"""What every token owes to its own channels: intra-token moments, and their part of the gradient."""

import triton
import triton.language as tl

from .tile import reference_of


@triton.jit
def token_moments(
    x, mask, real, moments, sums, tokens, prefix, divisor,
    C: tl.constexpr, CP: tl.constexpr, SPAN: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """moments[sample, token] = intra-token mean, relative to the sample's reference, and variance.

    sums[sample, block, channel] = sum over the (real) tokens of a block, relative to the reference: it gives the centre.
    Program: SPAN tokens of one sample, PART of them at a time.
    """
    blocks = tl.cdiv(tokens, SPAN)
    sample = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * SPAN
    patches = x + (sample * (prefix + tokens) + prefix) * C
    reference = reference_of(patches, real, sample, C)
    c = tl.arange(0, CP)
    total = tl.zeros((CP,), x.dtype.element_ty)
    for part in range(0, SPAN, PART):
        t = start + part + tl.arange(0, PART)
        inside = (t < tokens)[:, None] & (c < C)[None, :]
        v = tl.load(patches + t[:, None] * C + c[None, :], mask=inside, other=0.0)
        v = tl.where(inside, v - reference, 0.0)
        if mask is None:
            total += tl.sum(v, 0)
        else:
            valid = tl.load(mask + sample * (prefix + tokens) + prefix + t, mask=t < tokens, other=0) != 0
            total += tl.sum(tl.where(valid[:, None], v, 0.0), 0)
        mean = tl.sum(v, 1) / C
        v = tl.where(inside, v - mean[:, None], 0.0)
        left = tl.sum(v, 1) / C  # what rounding left of the mean
        var = (tl.sum(v * v, 1) - C * left * left) / divisor
        var = tl.where(var < 0, 0.0, var)  # NaN passes
        at = moments + 2 * sample * tokens + 2 * t
        tl.store(at, mean + left, mask=t < tokens)
        tl.store(at + 1, var, mask=t < tokens)
    tl.store(sums + tl.program_id(0).to(tl.int64) * C + c, total, mask=c < C)


@triton.jit
def add_token_gradients(
    x, real, gx, moments, token_grads, tokens, prefix, divisor, tiles,
    C: tl.constexpr, CP: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """gx += the gradient through the intra-token moments, of which token_grads[sample, tile, 2, token] are the gradients.

    Program: PART tokens of one sample.
    """
    blocks = tl.cdiv(tokens, PART)
    sample = (tl.program_id(0) // blocks).to(tl.int64)
    t = tl.program_id(0) % blocks * PART + tl.arange(0, PART)
    exists = t < tokens
    dmean = tl.zeros((PART,), x.dtype.element_ty)
    dvar = tl.zeros((PART,), x.dtype.element_ty)
    for first in range(0, tiles, 16):
        tile = first + tl.arange(0, 16)[:, None]
        at = token_grads + (sample * tiles + tile) * 2 * tokens + t[None, :]
        inside = (tile < tiles) & exists[None, :]
        dmean += tl.sum(tl.load(at, mask=inside, other=0.0), 0)
        dvar += tl.sum(tl.load(at + tokens, mask=inside, other=0.0), 0)
    x += (sample * (prefix + tokens) + prefix) * C
    gx += (sample * (prefix + tokens) + prefix) * C
    reference = reference_of(x, real, sample, C)
    c = tl.arange(0, CP)[None, :]
    at = t[:, None] * C + c
    inside = exists[:, None] & (c < C)
    mean = tl.load(moments + 2 * sample * tokens + 2 * t, mask=exists, other=0.0)
    v = tl.load(x + at, mask=inside, other=0.0) - reference - mean[:, None]
    old = tl.load(gx + at, mask=inside, other=0.0)
    tl.store(gx + at, old + dmean[:, None] / C + (2 * dvar / divisor)[:, None] * v, mask=inside)
