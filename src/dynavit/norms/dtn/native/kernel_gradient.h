/* The gradient of a positional kernel: grad_P[i][j] = sum of g[i] z[j] over lines, lanes and both
   tensors of a pair, only where P[i][j] is not cut, and from there to the kernel's two numbers.

   Lanes are summed last: `sums` holds a vector for each entry while blocks of channels and samples
   pass by. Of rows with the same weights only the sum over all of them is kept. */
#pragma once

#include "axis.h"

/* sum[r][k] += sum over lines of g[r] z[k], for one tensor. */
INLINE void outer_lines(V sum[OUTER_ROWS][OUTER_COLS], const V *g, const V *z, Lines lines,
                        const int rows, const int cols) {
    for (long l = lines.count; l > 0; l--, g += lines.gap, z += lines.gap) {
        V zs[OUTER_COLS];
        UNROLL
        for (int k = 0; k < cols; k++) {
            zs[k] = z[k * lines.step];
            KEEP(zs[k]);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            V gr = g[r * lines.step];
            KEEP(gr);
            UNROLL
            for (int k = 0; k < cols; k++) sum[r][k] += gr * zs[k];
        }
    }
}

/* sums[k * rows + r] += sum over lines and both tensors of g[r] z[k]. */
INLINE void outer_block(V *sums, Pair g, Pair z, Lines lines, const int rows, const int cols) {
    V sum[OUTER_ROWS][OUTER_COLS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int k = 0; k < cols; k++) sum[r][k] = sums[k * rows + r];
    }
    outer_lines(sum, g.first, z.first, lines, rows, cols);
    outer_lines(sum, g.second, z.second, lines, rows, cols);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int k = 0; k < cols; k++) sums[k * rows + r] = sum[r][k];
    }
}

/* All columns of a block of `rows` rows. */
INLINE void outer_columns(V *sums, Pair g, Pair z, Lines lines, const int rows, int cols) {
    for (; cols >= OUTER_COLS; cols -= OUTER_COLS, sums += OUTER_COLS * rows) {
        outer_block(sums, g, z, lines, rows, OUTER_COLS);
        z = pair_at(z, OUTER_COLS * lines.step);
    }
    if (cols == 1) outer_block(sums, g, z, lines, rows, 1);
    if (cols == 2) outer_block(sums, g, z, lines, rows, 2);
    if (OUTER_COLS > 3 && cols == 3) outer_block(sums, g, z, lines, rows, 3);
    if (OUTER_COLS > 4 && cols == 4) outer_block(sums, g, z, lines, rows, 4);
    if (OUTER_COLS > 5 && cols == 5) outer_block(sums, g, z, lines, rows, 5);
}

/* acc[k] += sum over i < rows of g[i] z[i + k], along one line. */
INLINE void run_line(V acc[OFFSETS], const V *g, const V *z, long step, int rows, int offsets) {
    int i = 0;
    if (offsets == OFFSETS)
        for (; i + 1 < rows; i += 2, g += 2 * step, z += 2 * step) {
            V a = g[0], b = g[step], zs[OFFSETS + 1]; /* two rows share all sources but one */
            UNROLL
            for (int k = 0; k <= OFFSETS; k++) zs[k] = z[k * step];
            UNROLL
            for (int k = 0; k < OFFSETS; k++) acc[k] += a * zs[k] + b * zs[k + 1];
        }
    for (; i < rows; i++, g += step, z += step)
        for (int k = 0; k < offsets; k++) acc[k] += g[0] * z[k * step];
}

/* sums[k] += sum over the rows of a run of g[i] z[first + k]. */
static void outer_run(V *sums, const Axis *axis, Pair g, Pair z, Lines lines) {
    const Band *band = &axis->band;
    Run run = axis->run;
    int rows = run.to - run.from, count = band->count[run.from];
    g = pair_at(g, run.from * lines.step);
    for (int k0 = 0; k0 < count; k0 += OFFSETS) {
        int offsets = least(count - k0, OFFSETS);
        Pair source = pair_at(z, (band->first[run.from] + k0) * lines.step);
        V acc[OFFSETS] = {0};
        for (long l = 0; l < lines.count * lines.gap; l += lines.gap) {
            run_line(acc, g.first + l, source.first + l, lines.step, rows, offsets);
            run_line(acc, g.second + l, source.second + l, lines.step, rows, offsets);
        }
        for (int k = 0; k < offsets; k++) sums[k0 + k] += acc[k];
    }
}

/* Adds one block of channels to `sums` (axis->sums vectors). */
static void kernel_gradient(V *sums, const Axis *axis, Pair g, Pair z, Lines lines) {
    const Blocks *blocks = &axis->blocks;
    for (int q = 0; q < blocks->count; q++) {
        Pair to = pair_at(g, blocks->row[q] * lines.step);
        Pair from = pair_at(z, blocks->from[q] * lines.step);
        V *mine = sums + blocks->at[q];
        int cols = blocks->to[q] - blocks->from[q];
        int rows = height_of(blocks, q);
        if (rows == 1) outer_columns(mine, to, from, lines, 1, cols);
        if (rows == 2) outer_columns(mine, to, from, lines, 2, cols);
        if (rows == 3) outer_columns(mine, to, from, lines, 3, cols);
        if (OUTER_ROWS > 3 && rows == 4) outer_columns(mine, to, from, lines, 4, cols);
    }
    if (axis->run.from < axis->run.to)
        outer_run(sums + axis->sums - axis->band.count[axis->run.from], axis, g, z, lines);
}

/* Lanes of the sums into grad_p, laid out as band.p; a run's first row stands for all of them. */
static void sum_lanes(const V *sums, const Axis *axis, double *grad_p) {
    const Band *band = &axis->band;
    const Blocks *blocks = &axis->blocks;
    for (int q = 0; q < blocks->count; q++) {
        int rows = height_of(blocks, q);
        if (blocks->from[q] == blocks->to[q]) continue;
        for (int i = blocks->row[q]; i < blocks->row[q + 1]; i++) {
            const V *mine = sums + blocks->at[q] + i - blocks->row[q];
            for (int k = 0; k < band->count[i]; k++)
                grad_p[(size_t)i * band->width + k] =
                    sum(mine[(band->first[i] + k - blocks->from[q]) * rows]);
        }
    }
    if (axis->run.from >= axis->run.to) return;
    int count = band->count[axis->run.from];
    for (int k = 0; k < count; k++)
        grad_p[(size_t)axis->run.from * band->width + k] = sum(sums[axis->sums - count + k]);
}

/* Adds the gradients of the kernel's two numbers; `grad_p` is scratch memory laid out as band.p. */
static void kernel_gradient_end(const V *sums, const Axis *axis, double *grad_p,
                                double *grad_square, double *grad_slope) {
    sum_lanes(sums, axis, grad_p);
    band_backward(&axis->band, grad_p, axis->run, grad_square, grad_slope);
}
