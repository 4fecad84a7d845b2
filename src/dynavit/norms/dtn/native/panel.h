/* Positional kernels packed for the passes, and the pass itself: P x along one axis. */
#pragma once

#include <stdlib.h>

#include "blocks.h"
#include "simd.h"

/* Blocks of rows side by side, so that one column of a block is one short read. */
typedef struct {
    Blocks blocks;
    REAL *w; /* w[at[q] + (j - from[q]) * height[q] + r] = P[row[q] + r][j] */
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
    REAL *w = panel->w;
    for (int q = 0; q < blocks->count; q++) {
        int row = blocks->row[q], end = row + blocks->height[q];
        for (int j = blocks->from[q]; j < blocks->to[q]; j++)
            for (int i = row; i < end; i++)
                *w++ = transpose ? band_at(band, j, i) : band_at(band, i, j);
    }
}

/* Returns 0 if memory is short; the panel must be freed in either case. */
static int panel_make(Panel *panel, const Band *band, int transpose) {
    Blocks *blocks = &panel->blocks;
    Run run = transpose ? band_run_transposed(band) : band->run;
    if (!blocks_make(blocks, band->n, ROWS, run, RUN_ROWS)) return 0;
    if (transpose)
        blocks_find_rows(blocks, band);
    else
        blocks_find_columns(blocks, band);
    long total = blocks_place(blocks);
    panel->w = malloc((total ? total : 1) * sizeof(REAL));
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
        if (q == p->blocks.run) continue;
        int rows = p->blocks.height[q];
        if (rows == 6) apply_block(p, q, in, out, lines, 6, count);
        if (rows == 5) apply_block(p, q, in, out, lines, 5, count);
        if (rows == 4) apply_block(p, q, in, out, lines, 4, count);
        if (rows == 3) apply_block(p, q, in, out, lines, 3, count);
        if (rows == 2) apply_block(p, q, in, out, lines, 2, count);
        if (rows == 1) apply_block(p, q, in, out, lines, 1, count);
    }
}

/* The block of a run, on `count` lines: few rows, which waste few products where their columns
   differ, and many lines, for which each weight is read once. */
INLINE void apply_same(const Panel *p, Pair in, Pair out, Lines lines, const int count) {
    const Blocks *blocks = &p->blocks;
    const int q = blocks->run;
    const REAL *w = p->w + blocks->at[q];
    V acc0[RUN_LINES][RUN_ROWS] = {0}, acc1[RUN_LINES][RUN_ROWS] = {0};
    long from = blocks->from[q] * lines.step, to = blocks->to[q] * lines.step;
    for (long at = from; at < to; at += lines.step, w += RUN_ROWS) {
        V ws[RUN_ROWS];
        UNROLL
        for (int r = 0; r < RUN_ROWS; r++) {
            ws[r] = same(w[r]);
            KEEP(ws[r]);
        }
        UNROLL
        for (int l = 0; l < count; l++) {
            V a = in.first[at + l * lines.gap], b = in.second[at + l * lines.gap];
            KEEP(a);
            KEEP(b);
            UNROLL
            for (int r = 0; r < RUN_ROWS; r++) acc0[l][r] += ws[r] * a, acc1[l][r] += ws[r] * b;
        }
    }
    UNROLL
    for (int r = 0; r < RUN_ROWS; r++) {
        UNROLL
        for (int l = 0; l < count; l++) {
            long at = (blocks->row[q] + r) * lines.step + l * lines.gap;
            out.first[at] = acc0[l][r], out.second[at] = acc1[l][r];
        }
    }
}

/* All copies of the block of a run on all lines. Several go together: on neighbouring lines or
   along one line, whichever lie closer together in memory. */
static void apply_run(const Panel *p, Pair in, Pair out, Lines lines) {
    long along = RUN_ROWS * lines.step, copies = p->blocks.copies;
    int across = lines.count > 1 && lines.gap < along;
    Lines near = {lines.step, across ? lines.count : copies, across ? lines.gap : along};
    Lines far = {lines.step, across ? copies : lines.count, across ? along : lines.gap};
    for (long k = 0; k < far.count; k++) {
        Pair from = pair_at(in, k * far.gap), to = pair_at(out, k * far.gap);
        long l = 0;
        for (; l + RUN_LINES <= near.count; l += RUN_LINES)
            apply_same(p, pair_at(from, l * near.gap), pair_at(to, l * near.gap), near, RUN_LINES);
        for (; l + 2 <= near.count; l += 2)
            apply_same(p, pair_at(from, l * near.gap), pair_at(to, l * near.gap), near, 2);
        if (l < near.count)
            apply_same(p, pair_at(from, l * near.gap), pair_at(to, l * near.gap), near, 1);
    }
}

/* out = P in along an axis. */
static void apply(const Panel *p, Pair in, Pair out, Lines lines) {
    long l = 0;
    for (; l + LINES <= lines.count; l += LINES)
        apply_lines(p, pair_at(in, l * lines.gap), pair_at(out, l * lines.gap), lines, LINES);
    for (; l < lines.count; l++)
        apply_lines(p, pair_at(in, l * lines.gap), pair_at(out, l * lines.gap), lines, 1);
    if (p->blocks.copies) apply_run(p, in, out, lines);
}
