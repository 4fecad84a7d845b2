/* One kernel in every form that the passes need. */
#pragma once

#include "panel.h"

typedef struct {
    Band band;
    Panel forward;
    /* Only for the backward pass: */
    Panel transposed;
    Blocks blocks; /* for the gradient of the entries; that of the run is one block, left empty */
    long sums;     /* vectors that this gradient adds up: those of blocks, then those of the run */
} Axis;

/* Weights of each row of the run. */
static inline int run_count(const Axis *axis) {
    return axis->blocks.copies ? axis->band.count[axis->band.run.from] : 0;
}

/* `axis` is all zero on entry. Returns 0 if memory is short; it must be freed in either case. */
static int axis_make(Axis *axis, const Score *score, int n, int backward) {
    Band *band = &axis->band;
    if (!band_make(band, score, n)) return 0;
    if (!panel_make(&axis->forward, band, 0)) return 0;
    if (!backward) return 1;
    if (!panel_make(&axis->transposed, band, 1)) return 0;
    Blocks *blocks = &axis->blocks;
    Run run = band->run;
    if (!blocks_make(blocks, n, OUTER_ROWS, run, run.to - run.from)) return 0;
    blocks_find_columns(blocks, band);
    if (blocks->copies) blocks->to[blocks->run] = blocks->from[blocks->run];
    axis->sums = blocks_place(blocks) + run_count(axis);
    return 1;
}

static void axis_free(Axis *axis) {
    band_free(&axis->band);
    panel_free(&axis->forward);
    panel_free(&axis->transposed);
    blocks_free(&axis->blocks);
}
