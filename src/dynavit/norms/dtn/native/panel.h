/* Positional kernels packed for the passes, and the pass itself: P x along one axis. */
#pragma once

#include <stdlib.h>

#include "blocks.h"
#include "simd.h"

/* Blocks of rows side by side, so that one column of a block is one short read. */
typedef struct {
    Blocks blocks;
    REAL *w; /* w[at[q] + (j - from[q]) * height + r] = P[row[q] + r][j], height of block q */
} Panel;

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

static void panel_fill(Panel *panel, const Band *band, int transpose) {
    const Blocks *blocks = &panel->blocks;
    for (int i = 0; i < band->n; i++)
        for (int k = 0; k < band->count[i]; k++) {
            int j = band->first[i] + k, row = transpose ? j : i, column = transpose ? i : j;
            int q = blocks->of[row], inside = row - blocks->row[q];
            long at = blocks->at[q] + (long)(column - blocks->from[q]) * height_of(blocks, q);
            panel->w[at + inside] = band_row(band, i)[k];
        }
}

/* Returns 0 if memory is short; the panel must be freed in either case. */
static int panel_make(Panel *panel, const Band *band, int transpose) {
    Blocks *blocks = &panel->blocks;
    if (!blocks_make(blocks, band->n, ROWS)) return 0;
    blocks_find_columns(blocks, band, transpose);
    long total = blocks_place(blocks);
    panel->w = calloc(total ? total : 1, sizeof(REAL));
    if (!panel->w) return 0;
    panel_fill(panel, band, transpose);
    return 1;
}

static void panel_free(Panel *panel) {
    blocks_free(&panel->blocks);
    free(panel->w);
}

/* ---- the pass ---- */

/* out[i] = sum_j P[i][j] in[j] for block q of `rows` rows, on `count` lines. */
INLINE void apply_block(const Panel *p, int q, Pair in, Pair out, Lines lines, const int rows,
                        const int count) {
    const Blocks *blocks = &p->blocks;
    const REAL *w = p->w + blocks->at[q];
    V acc0[LINES][ROWS] = {0}, acc1[LINES][ROWS] = {0};
    long from = blocks->from[q] * lines.step, to = blocks->to[q] * lines.step;
    for (long at = from; at < to; at += lines.step, w += rows) {
        V a[LINES], b[LINES];
        UNROLL
        for (int l = 0; l < count; l++) {
            a[l] = in.first[at + l * lines.gap], b[l] = in.second[at + l * lines.gap];
            KEEP(a[l]);
            KEEP(b[l]);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            UNROLL
            for (int l = 0; l < count; l++) acc0[l][r] += w[r] * a[l], acc1[l][r] += w[r] * b[l];
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int l = 0; l < count; l++) {
            long at = (blocks->row[q] + r) * lines.step + l * lines.gap;
            out.first[at] = acc0[l][r], out.second[at] = acc1[l][r];
        }
    }
}

INLINE void apply_lines(const Panel *p, Pair in, Pair out, Lines lines, const int count) {
    for (int q = 0; q < p->blocks.count; q++) {
        int rows = height_of(&p->blocks, q);
        if (rows == 6) apply_block(p, q, in, out, lines, 6, count);
        if (rows == 5) apply_block(p, q, in, out, lines, 5, count);
        if (rows == 4) apply_block(p, q, in, out, lines, 4, count);
        if (rows == 3) apply_block(p, q, in, out, lines, 3, count);
        if (rows == 2) apply_block(p, q, in, out, lines, 2, count);
        if (rows == 1) apply_block(p, q, in, out, lines, 1, count);
    }
}

/* out = P in along an axis. */
static void apply(const Panel *p, Pair in, Pair out, Lines lines) {
    long l = 0;
    for (; l + LINES <= lines.count; l += LINES)
        apply_lines(p, pair_at(in, l * lines.gap), pair_at(out, l * lines.gap), lines, LINES);
    for (; l < lines.count; l++)
        apply_lines(p, pair_at(in, l * lines.gap), pair_at(out, l * lines.gap), lines, 1);
}
