"""The factors of P: a softmax along the rows and one along the columns of the grid, for each head."""

import triton
import triton.language as tl


@triton.jit
def axis_kernels(position, axes, rows, cols, radius, cut, N: tl.constexpr, PART: tl.constexpr):
    """axes[head, axis, 0, i, j] = P, zero beyond the grid; axis 0 runs along the rows (slope a_y), 1 along the columns (a_x).

    axes[head, axis, 1 and 2] = its derivatives by the slope and by a_0: P (d - E[d]) and P (d^2 - E[d^2]), where d = j - i and
    E is the mean under row i.
    In float64, as scores reach thousands while weights depend on their differences. Program: (head, axis, PART target rows).
    """
    head, axis = tl.program_id(0), tl.program_id(1)
    n = tl.where(axis == 0, rows, cols)
    a2 = tl.load(position + 3 * head).to(tl.float64)
    a1 = tl.load(position + 3 * head + 2 - axis).to(tl.float64)  # position is [d^2, dx, dy]
    i = tl.program_id(2) * PART + tl.arange(0, PART)[:, None]
    j = tl.arange(0, N)[None, :]
    d = (j - i).to(tl.float64)
    allowed = (i < n) & (j < n) & (tl.abs(j - i) <= radius)
    scores = (a2 * d + a1) * d
    top = tl.max(tl.where(allowed, scores, float("-inf")), 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp(tl.where(allowed, scores - top[:, None], 0.0))
    weights = tl.where(allowed & ~(weights < cut), weights, 0.0)  # not `>= cut`: a NaN parameter stays visible
    total = tl.sum(weights, 1)
    weights = weights / tl.where(total == 0, 1.0, total)[:, None]
    by_slope = weights * (d - tl.sum(weights * d, 1)[:, None])
    by_square = weights * (d * d - tl.sum(weights * d * d, 1)[:, None])
    at = axes + (((head * 2 + axis) * 3) * N + i) * N + j
    tl.store(at, weights.to(axes.dtype.element_ty))
    tl.store(at + N * N, by_slope.to(axes.dtype.element_ty))
    tl.store(at + 2 * N * N, by_square.to(axes.dtype.element_ty))
