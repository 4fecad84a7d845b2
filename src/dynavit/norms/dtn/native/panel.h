/* Positional kernels packed for the passes, and the pass itself: P x along one axis. */
#pragma once

#include <stdlib.h>

#include "band.h"
#include "simd.h"

/* Blocks of ROWS rows side by side, so that one column of a block is one short read. */
typedef struct {
    int n, blocks, *from, *to; /* block q: rows q * ROWS..., columns from[q] <= j < to[q] */
    long *at;
    REAL *w; /* w[at[q] + (j - from[q]) * ROWS + r] = P[q * ROWS + r][j] */
} Panel;

/* One kernel in every form that the passes need. */
typedef struct {
    Band band;
    Panel forward, transposed; /* `transposed` and `run` only for the backward pass */
    Run run;                   /* whole blocks of rows with the same weights */
} Axis;

/* Tensors that every pass takes together: first and second moments, or gradients of them. Each
   weight is read once for both. */
typedef struct {
    V *first, *second;
} Pair;

/* A pass runs along `count` parallel lines, `gap` vectors apart; neighbours on a line are `step`
   vectors apart. */
typedef struct {
    long step, count, gap;
} Lines;

INLINE Pair pair_at(Pair pair, long at) { return (Pair){pair.first + at, pair.second + at}; }

/* ---- packing ---- */

static inline int least(int a, int b) { return a < b ? a : b; }

/* Columns of each block: from the first to the last that any of its rows sees. */
static void panel_find_columns(Panel *panel, const Band *band, int transpose) {
    for (int q = 0; q < panel->blocks; q++) panel->from[q] = panel->n, panel->to[q] = 0;
    for (int i = 0; i < panel->n; i++) {
        /* Both ends of a row are enough, but a transposed row shows only in all of its columns. */
        int last = band->count[i] - 1, stride = transpose || last < 1 ? 1 : last;
        for (int k = 0; k <= last; k += stride) {
            int j = band->first[i] + k, row = transpose ? j : i, column = transpose ? i : j;
            int q = row / ROWS;
            if (column < panel->from[q]) panel->from[q] = column;
            if (column + 1 > panel->to[q]) panel->to[q] = column + 1;
        }
    }
}

/* Sets where each block begins in w; returns the size of w. */
static long panel_place_blocks(Panel *panel) {
    long total = 0;
    for (int q = 0; q < panel->blocks; q++) {
        if (panel->to[q] < panel->from[q]) panel->from[q] = panel->to[q] = 0; /* unseen tokens */
        panel->at[q] = total;
        total += (long)(panel->to[q] - panel->from[q]) * ROWS;
    }
    return total;
}

static void panel_fill(Panel *panel, const Band *band, int transpose) {
    for (int i = 0; i < panel->n; i++)
        for (int k = 0; k < band->count[i]; k++) {
            int j = band->first[i] + k, row = transpose ? j : i, column = transpose ? i : j;
            int q = row / ROWS;
            long at = panel->at[q] + (long)(column - panel->from[q]) * ROWS + row % ROWS;
            panel->w[at] = band_row(band, i)[k];
        }
}

/* Returns 0 if memory is short; the panel must be freed in either case. */
static int panel_make(Panel *panel, const Band *band, int transpose) {
    int blocks = (band->n + ROWS - 1) / ROWS;
    panel->n = band->n;
    panel->blocks = blocks;
    panel->from = malloc(blocks * sizeof(int));
    panel->to = malloc(blocks * sizeof(int));
    panel->at = malloc(blocks * sizeof(long));
    if (!panel->from || !panel->to || !panel->at) return 0;
    panel_find_columns(panel, band, transpose);
    long total = panel_place_blocks(panel);
    panel->w = calloc(total ? total : 1, sizeof(REAL));
    if (!panel->w) return 0;
    panel_fill(panel, band, transpose);
    return 1;
}

static void panel_free(Panel *panel) {
    free(panel->from);
    free(panel->to);
    free(panel->at);
    free(panel->w);
}

/* `axis` is all zero on entry. Returns 0 if memory is short; it must be freed in either case. */
static int axis_make(Axis *axis, const Score *score, int n, int backward) {
    if (!band_make(&axis->band, score, n)) return 0;
    if (!panel_make(&axis->forward, &axis->band, 0)) return 0;
    if (!backward) return 1;
    axis->run = band_run(&axis->band, ROWS);
    return panel_make(&axis->transposed, &axis->band, 1);
}

static void axis_free(Axis *axis) {
    band_free(&axis->band);
    panel_free(&axis->forward);
    panel_free(&axis->transposed);
}

/* ---- the pass ---- */

/* out[i] = sum_j P[i][j] in[j] for a block of rows, on `count` lines. */
INLINE void apply_block(const Panel *p, int q, Pair in, Pair out, Lines lines, const int count) {
    const REAL *w = p->w + p->at[q];
    V acc0[LINES][ROWS] = {0}, acc1[LINES][ROWS] = {0};
    for (int j = p->from[q]; j < p->to[q]; j++, w += ROWS) {
        UNROLL
        for (int l = 0; l < count; l++) {
            long at = j * lines.step + l * lines.gap;
            V a = in.first[at], b = in.second[at];
            UNROLL
            for (int r = 0; r < ROWS; r++) acc0[l][r] += w[r] * a, acc1[l][r] += w[r] * b;
        }
    }
    int rows = least(p->n - q * ROWS, ROWS);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows) break;
        UNROLL
        for (int l = 0; l < count; l++) {
            long at = (q * ROWS + r) * lines.step + l * lines.gap;
            out.first[at] = acc0[l][r], out.second[at] = acc1[l][r];
        }
    }
}

INLINE void apply_lines(const Panel *p, Pair in, Pair out, Lines lines, const int count) {
    for (int q = 0; q < p->blocks; q++) apply_block(p, q, in, out, lines, count);
}

/* out = P in along an axis. */
static void apply(const Panel *p, Pair in, Pair out, Lines lines) {
    long l = 0;
    for (; l + LINES <= lines.count; l += LINES)
        apply_lines(p, pair_at(in, l * lines.gap), pair_at(out, l * lines.gap), lines, LINES);
    for (; l < lines.count; l++)
        apply_lines(p, pair_at(in, l * lines.gap), pair_at(out, l * lines.gap), lines, 1);
}
