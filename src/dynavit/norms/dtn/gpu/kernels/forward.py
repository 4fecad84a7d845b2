"""Forward pass of one tile: P x and P x^2 of its target columns, the mixture, the affine map."""

import triton
import triton.language as tl

from .tile import averages, centre_of, over_channels, reference_of, tile_of


@triton.jit
def forward_tile(
    x, mask, real, mass, y, moments, sums, axes, weight, bias, lam_mean, lam_var, rows, cols, prefix, eps, least_mass,
    C: tl.constexpr, D: tl.constexpr, N: tl.constexpr, RP: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sample, group, _, head, start = tile_of(tl.program_id(0), cols, C, D, STRIP, BLOCK)
    tokens, own = rows * cols, D - start
    first_channel = head * D + start
    patch = sample * (prefix + tokens) + prefix
    reference = reference_of(x + patch * C, real, sample, C)
    c = tl.arange(0, BLOCK)
    centre = centre_of(sums, real, sample, tokens, first_channel + c, c < own, C, SPAN)
    x += patch * C + first_channel
    y += patch * C + first_channel
    moments += 2 * sample * tokens
    if mask is not None:
        mask += patch
        mass += (sample * (C // D) + head) * tokens

    mean, second, _, _ = averages(
        x, mask, axes, reference, centre, head, group, rows, cols, own, C, N, RP, STRIP, BLOCK, PRECISION
    )
    k = tl.arange(0, STRIP * BLOCK)[None, :]
    q, kc = group * STRIP + k // BLOCK, k % BLOCK
    row = tl.arange(0, RP)[:, None]
    token = row * cols + q
    inside = (row < rows) & (q < cols) & (kc < own)
    lm, lv = tl.load(lam_mean + head), tl.load(lam_var + head)
    if mask is not None:
        on_real = tl.load(mass + token, mask=inside, other=-1.0)
        padding = on_real < 0
        seen = on_real > least_mass
        on_real = tl.where(seen, on_real, 1.0)
        mean, second = mean / on_real, second / on_real
        lm, lv = tl.where(seen, lm, 1.0), tl.where(seen, lv, 1.0)  # a row without real tokens: intra-token moments alone
    var = second - mean * mean
    var = tl.where(var < 0, 0.0, var)  # NaN passes
    offset = over_channels(centre, STRIP, BLOCK)
    v = tl.load(x + token * C + kc, mask=inside, other=0.0) - reference - offset
    mean_ln = tl.load(moments + 2 * token, mask=inside, other=0.0)
    var_ln = tl.load(moments + 2 * token + 1, mask=inside, other=1.0)
    out = v - (1 - lm) * mean - lm * (mean_ln - offset)
    out = out / tl.sqrt(lv * var_ln + (1 - lv) * var + eps)
    channel = first_channel + kc
    if weight is not None:
        out = out * tl.load(weight + channel, mask=kc < own, other=0.0)
    if bias is not None:
        out = out + tl.load(bias + channel, mask=kc < own, other=0.0)
    if mask is not None:
        out = tl.where(padding, 0.0, out)
    tl.store(y + token * C + kc, out, mask=inside)
