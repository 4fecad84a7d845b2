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
INLINE void run_line(V acc[OFFSETS], const V *g, const V *z, long step, int rows,
                     const int offsets) {
    int i = 0;
    for (; i + 1 < rows; i += 2, g += 2 * step, z += 2 * step) {
        V a = g[0], b = g[step], zs[OFFSETS + 1]; /* two rows share all sources but one */
        UNROLL
        for (int k = 0; k <= offsets; k++) zs[k] = z[k * step];
        UNROLL
        for (int k = 0; k < offsets; k++) acc[k] += a * zs[k] + b * zs[k + 1];
    }
    if (i < rows) {
        UNROLL
        for (int k = 0; k < offsets; k++) acc[k] += g[0] * z[k * step];
    }
}

/* sums[k] += sum over `rows` rows of g[i] z[i + k], for all lines and both tensors. */
INLINE void run_lines(V *sums, Pair g, Pair z, Lines lines, int rows, const int offsets) {
    V acc[OFFSETS] = {0};
    for (long l = 0; l < lines.count * lines.gap; l += lines.gap) {
        run_line(acc, g.first + l, z.first + l, lines.step, rows, offsets);
        run_line(acc, g.second + l, z.second + l, lines.step, rows, offsets);
    }
    UNROLL
    for (int k = 0; k < offsets; k++) sums[k] += acc[k];
}

/* The same for the rows of a run and all of their offsets, in nearly equal parts. */
static void outer_run(V *sums, const Axis *axis, Pair g, Pair z, Lines lines) {
    Run run = axis->band.run;
    int rows = run.to - run.from, count = run_count(axis);
    int parts = (count + OFFSETS - 1) / OFFSETS;
    g = pair_at(g, run.from * lines.step);
    z = pair_at(z, axis->band.first[run.from] * lines.step);
    for (int part = 0; part < parts; part++) {
        int k = part * count / parts, offsets = (part + 1) * count / parts - k;
        Pair from = pair_at(z, k * lines.step);
        if (offsets == 8) run_lines(sums + k, g, from, lines, rows, 8);
        if (offsets == 7) run_lines(sums + k, g, from, lines, rows, 7);
        if (offsets == 6) run_lines(sums + k, g, from, lines, rows, 6);
        if (offsets == 5) run_lines(sums + k, g, from, lines, rows, 5);
        if (offsets == 4) run_lines(sums + k, g, from, lines, rows, 4);
        if (offsets == 3) run_lines(sums + k, g, from, lines, rows, 3);
        if (offsets == 2) run_lines(sums + k, g, from, lines, rows, 2);
        if (offsets == 1) run_lines(sums + k, g, from, lines, rows, 1);
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
        int rows = blocks->height[q];
        if (q == blocks->run) continue;
        if (rows == 1) outer_columns(mine, to, from, lines, 1, cols);
        if (rows == 2) outer_columns(mine, to, from, lines, 2, cols);
        if (rows == 3) outer_columns(mine, to, from, lines, 3, cols);
        if (OUTER_ROWS > 3 && rows == 4) outer_columns(mine, to, from, lines, 4, cols);
    }
    if (blocks->copies) outer_run(sums + axis->sums - run_count(axis), axis, g, z, lines);
}

/* Lanes of the sums into grad_p (rows, width); a run's first row stands for all of them. */
static void sum_lanes(const V *sums, const Axis *axis, double *grad_p) {
    const Band *band = &axis->band;
    const Blocks *blocks = &axis->blocks;
    for (int q = 0; q < blocks->count; q++) {
        int rows = blocks->height[q];
        if (q == blocks->run) continue;
        for (int i = blocks->row[q]; i < blocks->row[q] + rows; i++) {
            const V *mine = sums + blocks->at[q] + i - blocks->row[q];
            for (int k = 0; k < band->count[i]; k++)
                grad_p[(size_t)i * band->width + k] =
                    sum(mine[(band->first[i] + k - blocks->from[q]) * rows]);
        }
    }
    int row = band->run.from, count = run_count(axis);
    for (int k = 0; k < count; k++)
        grad_p[(size_t)row * band->width + k] = sum(sums[axis->sums - count + k]);
}

/* Adds the gradients of the kernel's two numbers; `grad_p` is scratch memory (rows, width). */
static void kernel_gradient_end(const V *sums, const Axis *axis, double *grad_p,
                                double *grad_square, double *grad_slope) {
    sum_lanes(sums, axis, grad_p);
    band_backward(&axis->band, grad_p, grad_square, grad_slope);
}
