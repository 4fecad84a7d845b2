"""Masked grids: the weight that each row of P has on real tokens, P m, by which averages are divided; and its gradient.

A kernel of its own: the mass is the same for all channels of a head, and inside a tile its small products would decide how
the large ones are shared out among warps.
"""

import triton
import triton.language as tl

from .tile import load_axis


@triton.jit
def load_valid(mask, first, rows, cols, like, RP: tl.constexpr, STRIP: tl.constexpr):
    """(STRIP, RP): 1 for a real token, 0 for none."""
    q = first + tl.arange(0, STRIP)[:, None]
    row = tl.arange(0, RP)[None, :]
    return (tl.load(mask + row * cols + q, mask=(q < cols) & (row < rows), other=0) != 0).to(like)


@triton.jit
def masses(
    mask, mass, axes, rows, cols, prefix, heads,
    N: tl.constexpr, RP: tl.constexpr, STRIP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """mass[sample, head, token] = P m, at padding -1. Program: (sample, head, group of target columns)."""
    sample, head, group = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    number = mass.dtype.element_ty
    mask += sample * (prefix + rows * cols) + prefix
    mass += (sample * heads + head) * rows * cols
    i, s = tl.arange(0, RP), tl.arange(0, STRIP)
    z = tl.zeros((STRIP, RP), number)
    for first in range(0, cols, STRIP):
        valid = load_valid(mask, first, rows, cols, number, RP, STRIP)
        horizontal = load_axis(axes, head, 1, 0, group * STRIP + s, first + s, N)
        z = tl.dot(horizontal, valid, z, input_precision=PRECISION, out_dtype=number)
    z = tl.dot(load_axis(axes, head, 0, 0, i, i, N), tl.trans(z), input_precision=PRECISION, out_dtype=number)
    row, q = i[:, None], group * STRIP + s[None, :]
    real = tl.trans(load_valid(mask, group * STRIP, rows, cols, number, RP, STRIP)) != 0
    tl.store(mass + row * cols + q, tl.where(real, z, -1.0), mask=(row < rows) & (q < cols))


@triton.jit
def mass_gradients(
    mask, mass_grads, position_grads, axes, rows, cols, prefix, heads,
    N: tl.constexpr, RP: tl.constexpr, STRIP: tl.constexpr, BLOCKS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """position_grads[sample, head, group] = gradients of (a_0, a_x, a_y) through P m, from mass_grads[sample, tile, token].

    Program: (sample, head, group of target columns).
    """
    sample, head, group = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    tokens = rows * cols
    number = axes.dtype.element_ty
    mask += sample * (prefix + tokens) + prefix
    mass_grads += (sample * heads + head) * BLOCKS * tokens
    i, s = tl.arange(0, RP), tl.arange(0, STRIP)
    row, q = i[:, None], group * STRIP + s[None, :]
    grad = tl.zeros((RP, STRIP), number)
    for block in range(BLOCKS):
        grad += tl.load(mass_grads + block * tokens + row * cols + q, mask=(row < rows) & (q < cols), other=0.0)
    back = tl.dot(tl.trans(load_axis(axes, head, 0, 0, i, i, N)), grad, input_precision=PRECISION, out_dtype=number)
    back = tl.trans(back)
    z = tl.zeros((STRIP, RP), number)
    by_slope = tl.zeros((STRIP, RP), number)
    by_square = tl.zeros((STRIP, RP), number)
    for first in range(0, cols, STRIP):
        valid = load_valid(mask, first, rows, cols, number, RP, STRIP)
        target, source = group * STRIP + s, first + s
        z = tl.dot(load_axis(axes, head, 1, 0, target, source, N), valid, z, input_precision=PRECISION, out_dtype=number)
        by_slope = tl.dot(
            load_axis(axes, head, 1, 1, target, source, N), valid, by_slope, input_precision=PRECISION, out_dtype=number
        )
        by_square = tl.dot(
            load_axis(axes, head, 1, 2, target, source, N), valid, by_square, input_precision=PRECISION, out_dtype=number
        )
    a0 = tl.sum(tl.sum(back * by_square, 1), 0)
    ax = tl.sum(tl.sum(back * by_slope, 1), 0)
    z = tl.trans(z)
    slope = tl.dot(load_axis(axes, head, 0, 1, i, i, N), z, input_precision=PRECISION, out_dtype=number)
    square = tl.dot(load_axis(axes, head, 0, 2, i, i, N), z, input_precision=PRECISION, out_dtype=number)
    a0 += tl.sum(tl.sum(grad * square, 1), 0)
    at = position_grads + ((sample * heads + head) * tl.num_programs(2) + group) * 3
    tl.store(at, a0)
    tl.store(at + 1, ax)
    tl.store(at + 2, tl.sum(tl.sum(grad * slope, 1), 0))
