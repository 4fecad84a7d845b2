/* The gradient of a positional kernel: grad_P[i][j] = sum of g[i] z[j] over lines, lanes and both
   tensors of a pair, only where P[i][j] is not cut, and from there to the kernel's two numbers. */
#pragma once

#include "panel.h"

/* acc[r][k] += sum over lines of g[r] z[k]. Not inlined: alone, it fits the registers. */
NOINLINE void outer_block(V acc[ROWS][ROWS], const V *g, const V *z, Lines lines) {
    V sum[ROWS][ROWS];
    memcpy(sum, acc, sizeof sum);
    for (long l = lines.count; l > 0; l--, g += lines.gap, z += lines.gap) {
        V zs[ROWS];
        UNROLL
        for (int k = 0; k < ROWS; k++) zs[k] = z[k * lines.step];
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int k = 0; k < ROWS; k++) sum[r][k] += g[r * lines.step] * zs[k];
        }
    }
    memcpy(acc, sum, sizeof sum);
}

/* The same for both tensors of an axis of n < ROWS tokens. */
static void outer_short(V acc[ROWS][ROWS], Pair g, Pair z, Lines lines, int n) {
    for (long l = 0; l < lines.count * lines.gap; l += lines.gap)
        for (int r = 0; r < n; r++)
            for (int k = 0; k < n; k++) {
                long to = r * lines.step + l, from = k * lines.step + l;
                acc[r][k] += g.first[to] * z.first[from] + g.second[to] * z.second[from];
            }
}

/* Sums over the lanes of `count` vectors, a power of two. */
INLINE void lane_sums(V *acc, const int count, REAL *total) {
    const int at_once = LANES < count ? LANES : count;
    UNROLL
    for (int k = 0; k < count; k += at_once) store(total + k, sums(acc + k, at_once), at_once);
}

/* Adds to grad_p in block q of rows. */
static void outer_rows(const Axis *axis, double *grad_p, Pair g, Pair z, Lines lines, int q) {
    const Band *band = &axis->band;
    /* At the end of an axis its last ROWS rows or columns are taken again, if there are so many. */
    int n = band->n, last = n > ROWS ? n - ROWS : 0, i0 = least(q * ROWS, last);
    for (int j = axis->forward.from[q]; j < axis->forward.to[q]; j += ROWS) {
        int j0 = least(j, last);
        long to = i0 * lines.step, from = j0 * lines.step;
        V acc[ROWS][ROWS] = {0};
        if (n >= ROWS) {
            outer_block(acc, g.first + to, z.first + from, lines);
            outer_block(acc, g.second + to, z.second + from, lines);
        } else {
            outer_short(acc, g, z, lines, n);
        }
        REAL total[ROWS * ROWS];
        lane_sums(&acc[0][0], ROWS * ROWS, total);
        for (int i = q * ROWS; i < n && i < q * ROWS + ROWS; i++)
            for (int k = j; k < n && k < j + ROWS; k++) {
                int at = k - band->first[i];
                if (at >= 0 && at < band->count[i])
                    grad_p[(size_t)i * band->width + at] += total[(i - i0) * ROWS + k - j0];
            }
    }
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

/* Adds to grad_p for a run of rows with the same weights: only the sum over these rows matters for
   each offset, so lanes are summed once per offset. It goes to the first row of the run. */
static void outer_run(const Axis *axis, double *grad_p, Pair g, Pair z, Lines lines) {
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
        REAL total[OFFSETS];
        lane_sums(acc, OFFSETS, total);
        double *to = grad_p + (size_t)run.from * band->width + k0;
        for (int k = 0; k < offsets; k++) to[k] += total[k];
    }
}

/* Adds the gradients of the kernel's two numbers; `grad_p` is scratch memory laid out as band.p. */
static void kernel_gradient(const Axis *axis, Pair g, Pair z, Lines lines, double *grad_p,
                            double *grad_square, double *grad_slope) {
    const Band *band = &axis->band;
    Run run = axis->run;
    for (int i = 0; i < band->n; i = next_row(i, run))
        memset(grad_p + (size_t)i * band->width, 0, band->width * sizeof(double));
    for (int q = 0; q < axis->forward.blocks; q++)
        if (q * ROWS < run.from || q * ROWS >= run.to) outer_rows(axis, grad_p, g, z, lines, q);
    if (run.from < run.to) outer_run(axis, grad_p, g, z, lines);
    band_backward(band, grad_p, run, grad_square, grad_slope);
}
