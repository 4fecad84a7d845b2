/* One kernel in every form that the passes need. */
#pragma once

#include "panel.h"

typedef struct {
    Band band;
    Panel forward;
    /* Only for the backward pass: */
    Panel transposed;
    Run run;       /* rows with the same weights */
    Blocks blocks; /* of all rows, for the gradient of the entries; those in the run stay empty */
    long sums;     /* vectors that this gradient adds up: those of blocks, then those of the run */
} Axis;

/* `axis` is all zero on entry. Returns 0 if memory is short; it must be freed in either case. */
static int axis_make(Axis *axis, const Score *score, int n, int backward) {
    Band *band = &axis->band;
    if (!band_make(band, score, n)) return 0;
    if (!panel_make(&axis->forward, band, 0)) return 0;
    if (!backward) return 1;
    if (!panel_make(&axis->transposed, band, 1)) return 0;
    if (!blocks_make(&axis->blocks, n, OUTER_ROWS)) return 0;
    axis->run = band_run(band, axis->blocks.row, axis->blocks.count);
    blocks_find_columns(&axis->blocks, band, 0);
    for (int q = 0; q < axis->blocks.count; q++)
        if (in_run(axis->run, axis->blocks.row[q])) axis->blocks.to[q] = axis->blocks.from[q];
    axis->sums = blocks_place(&axis->blocks);
    if (axis->run.from < axis->run.to) axis->sums += band->count[axis->run.from];
    return 1;
}

static void axis_free(Axis *axis) {
    band_free(&axis->band);
    panel_free(&axis->forward);
    panel_free(&axis->transposed);
    blocks_free(&axis->blocks);
}
