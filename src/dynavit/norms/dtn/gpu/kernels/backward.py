"""Backward pass of one tile, in two kernels because a product with the transposed Px crosses the groups of columns.

`target_gradients` computes the statistics again and goes back from the outputs to u = Py^T (gradient of P x). A grid of one
strip each way (u is None) is finished there; on larger ones u is stored and `source_gradients` goes on. Gradients of parameters
are left as one partial sum for each program, without atomics, so that results are the same in every run.
"""

import triton
import triton.language as tl

from .tile import (
    average_both,
    averages,
    centre_of,
    column_averages,
    load_axis,
    load_patch,
    over_channels,
    reference_of,
    tile_of,
    turned,
)


@triton.jit
def back_along_rows(axes, head, i, j, d1, d2, z1, z2, N: tl.constexpr, PRECISION: tl.constexpr):
    """From the gradients d of P z at target rows i to those of z at source rows j; and terms of the gradients of a_y and a_0.

    The terms are z (P'^T d), with P' the derivative of P by the parameter: the gradient of P itself is never made.
    """
    u1, u2 = average_both(tl.trans(load_axis(axes, head, 0, 0, i, j, N)), d1, d2, PRECISION)
    slope1, slope2 = average_both(tl.trans(load_axis(axes, head, 0, 1, i, j, N)), d1, d2, PRECISION)
    square1, square2 = average_both(tl.trans(load_axis(axes, head, 0, 2, i, j, N)), d1, d2, PRECISION)
    return u1, u2, z1 * slope1 + z2 * slope2, z1 * square1 + z2 * square2


@triton.jit
def back_along_columns(axes, head, i, j, u1, u2, v, N: tl.constexpr, PRECISION: tl.constexpr):
    """From u at target columns i to the gradient of v at source columns j; and terms of the gradients of a_x and a_0."""
    back1, back2 = average_both(tl.trans(load_axis(axes, head, 1, 0, i, j, N)), u1, u2, PRECISION)
    slope1, slope2 = average_both(tl.trans(load_axis(axes, head, 1, 1, i, j, N)), u1, u2, PRECISION)
    square1, square2 = average_both(tl.trans(load_axis(axes, head, 1, 2, i, j, N)), u1, u2, PRECISION)
    return back1 + 2 * v * back2, v * (slope1 + v * slope2), v * (square1 + v * square2)


@triton.jit
def total(terms):
    return tl.sum(tl.sum(terms, 1), 0)


@triton.jit
def target_gradients(
    x, mask, real, mass, gy, gx, moments, sums, axes, weight, lam_mean, lam_var, token_grads, mass_grads, head_grads, affine, u,
    rows, cols, prefix, eps, least_mass, slots,
    C: tl.constexpr, D: tl.constexpr, N: tl.constexpr, RP: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Writes gx, but for what comes through intra-token moments and, if u is given, through P x. Partial sums of gradients:

    head_grads[program] of (lam_mean, lam_var, a_0, a_x, a_y), affine[sample, group] of (weight, bias) of each channel,
    token_grads[sample, tile] of (intra-token mean, variance) of each token, mass_grads[sample, tile] of the mass of each token.
    """
    TILES: tl.constexpr = C // D * ((D + BLOCK - 1) // BLOCK)
    pid = tl.program_id(0)
    sample, group, tile, head, start = tile_of(pid, cols, C, D, STRIP, BLOCK)
    tokens, own = rows * cols, D - start
    first_channel = head * D + start
    patch = sample * (prefix + tokens) + prefix
    reference = reference_of(x + patch * C, real, sample, C)
    c = tl.arange(0, BLOCK)
    centre = centre_of(sums, real, sample, tokens, first_channel + c, c < own, C, SPAN)
    x += patch * C + first_channel
    gy += patch * C + first_channel
    gx += patch * C + first_channel
    moments += 2 * sample * tokens
    if mask is not None:
        mask += patch
        mass += (sample * (C // D) + head) * tokens
        mass_grads += (sample * TILES + tile) * tokens

    # The statistics, as in the forward pass.
    mean, second, z1, z2 = averages(
        x, mask, axes, reference, centre, head, group, rows, cols, own, C, N, RP, STRIP, BLOCK, PRECISION
    )
    i, s = tl.arange(0, RP), tl.arange(0, STRIP)

    # The mixture and the affine map, number by number.
    k = tl.arange(0, STRIP * BLOCK)[None, :]
    q, kc = group * STRIP + k // BLOCK, k % BLOCK
    token = i[:, None] * cols + q
    exists = (i[:, None] < rows) & (q < cols) & (kc < own)
    inside = exists  # and real: padding gets a gradient of 0
    lm, lv = tl.load(lam_mean + head), tl.load(lam_var + head)
    if mask is not None:
        on_real = tl.load(mass + token, mask=exists, other=-1.0)
        inside = exists & ~(on_real < 0)  # not `>= 0`: a NaN mass stays visible
        seen = on_real > least_mass
        on_real = tl.where(seen, on_real, 1.0)
        mean, second = mean / on_real, second / on_real
        lm, lv = tl.where(seen, lm, 1.0), tl.where(seen, lv, 1.0)
    raw = second - mean * mean
    var = tl.where(raw < 0, 0.0, raw)
    offset = over_channels(centre, STRIP, BLOCK)
    g = tl.load(gy + token * C + kc, mask=inside, other=0.0)
    v = tl.load(x + token * C + kc, mask=inside, other=0.0) - reference - offset
    apart = tl.load(moments + 2 * token, mask=inside, other=0.0) - offset
    var_ln = tl.load(moments + 2 * token + 1, mask=inside, other=1.0)
    scale = 1 / tl.sqrt(lv * var_ln + (1 - lv) * var + eps)
    unit = (v - (1 - lm) * mean - lm * apart) * scale
    if affine is not None:
        at = affine + (sample * slots + group) * 2 * C + first_channel + c
        dweight = tl.where(inside, g * unit, 0.0)
        tl.store(at, tl.sum(tl.sum(tl.reshape(dweight, (RP, STRIP, BLOCK)), 1), 0), mask=c < own)
        tl.store(at + C, tl.sum(tl.sum(tl.reshape(g, (RP, STRIP, BLOCK)), 1), 0), mask=c < own)
    if weight is not None:
        g = g * tl.load(weight + first_channel + kc, mask=kc < own, other=0.0)
    dn = tl.where(inside, g * scale, 0.0)  # `where`: beyond the grid a NaN centre would make 0 * NaN
    dvar = tl.where(inside, -0.5 * dn * unit * scale, 0.0)
    dlm = tl.where(inside, dn * (mean - apart), 0.0)
    dlv = tl.where(inside, dvar * (var_ln - var), 0.0)
    if mask is not None:
        dlm, dlv = tl.where(seen, dlm, 0.0), tl.where(seen, dlv, 0.0)
    head_grads += pid.to(tl.int64) * 5
    tl.store(head_grads, total(dlm))
    tl.store(head_grads + 1, total(dlv))
    place = i[:, None] * cols + group * STRIP + s[None, :]
    at = token_grads + (sample * TILES + tile) * 2 * tokens + place
    one_each = (i[:, None] < rows) & (group * STRIP + s[None, :] < cols)
    tl.store(at, -tl.sum(tl.reshape(lm * dn, (RP, STRIP, BLOCK)), 2), mask=one_each)
    tl.store(at + tokens, tl.sum(tl.reshape(lv * dvar, (RP, STRIP, BLOCK)), 2), mask=one_each)
    ds = tl.where(raw < 0, 0.0, (1 - lv) * dvar)
    dm = -(1 - lm) * dn - 2 * mean * ds
    if mask is not None:
        dmass = tl.where(seen, -(dm * mean + ds * second) / on_real, 0.0)
        tl.store(mass_grads + place, tl.sum(tl.reshape(dmass, (RP, STRIP, BLOCK)), 2), mask=one_each)
        dm, ds = dm / on_real, ds / on_real

    # Back along the rows, one strip of source rows after the other.
    a0 = 0.0
    ax = 0.0
    ay = 0.0
    if u is None:
        u1, u2, by_slope, by_square = back_along_rows(axes, head, i, s, dm, ds, z1, z2, N, PRECISION)
        a0 += total(by_square)
        ay += total(by_slope)
        v = load_patch(x, mask, reference, centre, 0, 0, rows, cols, own, C, STRIP, BLOCK)
        u1, u2 = turned(u1, STRIP, BLOCK), turned(u2, STRIP, BLOCK)
        dv, by_slope, by_square = back_along_columns(axes, head, s, s, u1, u2, v, N, PRECISION)
        a0 += total(by_square)
        ax += total(by_slope)
        tl.store(gx + token * C + kc, dn + tl.where(inside, turned(dv, STRIP, BLOCK), 0.0), mask=exists)
    else:
        tl.store(gx + token * C + kc, dn, mask=exists)
        WIDTH: tl.constexpr = STRIP * BLOCK
        at = u + pid.to(tl.int64) * 2 * RP * WIDTH + s[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        for row in range(0, rows, STRIP):
            if RP > STRIP:
                z1, z2 = column_averages(
                    x, mask, axes, reference, centre, head, group, row, rows, cols, own, C, N, STRIP, BLOCK, PRECISION
                )
            u1, u2, by_slope, by_square = back_along_rows(axes, head, i, row + s, dm, ds, z1, z2, N, PRECISION)
            a0 += total(by_square)
            ay += total(by_slope)
            tl.store(at + row * WIDTH, turned(u1, STRIP, BLOCK))
            tl.store(at + (RP + row) * WIDTH, turned(u2, STRIP, BLOCK))
    tl.store(head_grads + 2, a0)
    tl.store(head_grads + 3, ax)
    tl.store(head_grads + 4, ay)


@triton.jit
def source_gradients(
    x, mask, real, gx, sums, axes, head_grads, u, rows, cols, prefix,
    C: tl.constexpr, D: tl.constexpr, N: tl.constexpr, RP: tl.constexpr, STRIP: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """gx += Px^T u for one group of source columns, from u of all groups; and their gradients of a, head_grads[program]."""
    TILES: tl.constexpr = C // D * ((D + BLOCK - 1) // BLOCK)
    WIDTH: tl.constexpr = STRIP * BLOCK
    pid = tl.program_id(0)
    sample, group, tile, head, start = tile_of(pid, cols, C, D, STRIP, BLOCK)
    tokens, own = rows * cols, D - start
    first_channel = head * D + start
    patch = sample * (prefix + tokens) + prefix
    reference = reference_of(x + patch * C, real, sample, C)
    c = tl.arange(0, BLOCK)
    centre = centre_of(sums, real, sample, tokens, first_channel + c, c < own, C, SPAN)
    x += patch * C + first_channel
    gx += patch * C + first_channel
    if mask is not None:
        mask += patch
    number = x.dtype.element_ty

    s = tl.arange(0, STRIP)
    k = tl.arange(0, WIDTH)[None, :]
    col, groups = group * STRIP, tl.cdiv(cols, STRIP)
    a0 = 0.0
    ax = 0.0
    for row in range(0, rows, STRIP):
        v = load_patch(x, mask, reference, centre, row, col, rows, cols, own, C, STRIP, BLOCK)
        through = tl.zeros((STRIP, WIDTH), number)
        by_slope = tl.zeros((STRIP, WIDTH), number)
        by_square = tl.zeros((STRIP, WIDTH), number)
        for target in range(groups):
            at = u + ((sample * groups + target) * TILES + tile) * 2 * RP * WIDTH + row * WIDTH + s[:, None] * WIDTH + k
            u1, u2 = tl.load(at), tl.load(at + RP * WIDTH)
            dv, slope, square = back_along_columns(axes, head, target * STRIP + s, col + s, u1, u2, v, N, PRECISION)
            through += dv
            by_slope += slope
            by_square += square
        a0 += total(by_square)
        ax += total(by_slope)
        q, r, kc = col + s[:, None], row + k // BLOCK, k % BLOCK
        inside = (q < cols) & (r < rows) & (kc < own)
        if mask is not None:
            inside = inside & (tl.load(mask + r * cols + q, mask=inside, other=0) != 0)
        at = gx + (r * cols + q) * C + kc
        tl.store(at, tl.load(at, mask=inside, other=0.0) + through, mask=inside)
    at = head_grads + pid.to(tl.int64) * 5
    tl.store(at, 0.0)
    tl.store(at + 1, 0.0)
    tl.store(at + 2, a0)
    tl.store(at + 3, ax)
    tl.store(at + 4, 0.0)
