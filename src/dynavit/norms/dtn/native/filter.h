/* The separable average over tokens, on one block of a tile, and its transpose. */
#pragma once

#include "cells.h"
#include "kernel_gradient.h"

/* Moves a block to coordinates in which each channel has a mean near 0, and squares it: second
   moments of centred numbers do not cancel. Returns the centre, relative to `reference`. No result
   depends on the exact centre, so that of some tokens is enough. */
static V centre_block(V *x, V *xx, long tokens, REAL reference) {
    long step = tokens < 64 ? 1 : 3, count = 0; /* odd, unlike most rows */
    V origin = x[0], even = {0}, odd = {0};
    for (long t = 0; t < tokens; t += 2 * step, count++) even += x[t] - origin;
    for (long t = step; t < tokens; t += 2 * step, count++) odd += x[t] - origin;
    V centre = origin + (even + odd) / (REAL)count;
    for (long t = 0; t < tokens; t++) {
        x[t] -= centre;
        xx[t] = x[t] * x[t];
    }
    return centre - reference;
}

/* Passes run over cells. */
INLINE Lines vertical_lines(const Tile *tile) {
    return (Lines){tile->cell_cols, tile->cell_cols, 1};
}

INLINE Lines horizontal_lines(const Tile *tile) {
    return (Lines){1, tile->cell_rows, tile->cell_cols};
}

/* Where the passes read and write: the tokens themselves, or cells of them. */
typedef struct {
    Pair in, between, out;
} Passes;

static Passes passes_of(const Tile *tile, const Scratch *scratch, V *x) {
    if (tile->pool == 1) return (Passes){{x, scratch->xx}, scratch->between, scratch->moments};
    return (Passes){scratch->pooled[0], scratch->pooled[1], scratch->pooled[2]};
}

/* P x and P x^2 of one head into scratch->moments. A pass over an axis of length 1 would change
   nothing and is left out. */
static void filter(const Tile *tile, const Scratch *scratch, long head, V *x) {
    const Panel *vertical = &tile->vertical[head].forward;
    const Panel *horizontal = &tile->horizontal[head].forward;
    Passes passes = passes_of(tile, scratch, x);
    if (tile->pool > 1) pool_pair(tile, (Pair){x, scratch->xx}, passes.in, MEANS);
    if (tile->cell_cols == 1) {
        apply(vertical, passes.in, passes.out, (Lines){1, 1, 1});
    } else if (tile->cell_rows == 1) {
        apply(horizontal, passes.in, passes.out, (Lines){1, 1, 1});
    } else {
        apply(vertical, passes.in, passes.between, vertical_lines(tile));
        apply(horizontal, passes.between, passes.out, horizontal_lines(tile));
    }
    if (tile->pool > 1) spread_pair(tile, passes.out, scratch->moments, SUMS);
}

/* ---- the transpose ---- */

/* Sums for the gradients of one head's kernels, over all blocks of a unit. */
INLINE V *sums_down(const Scratch *scratch, long head) {
    return scratch->sums + head * scratch->head_sums;
}

INLINE V *sums_across(const Scratch *scratch, long head) {
    return sums_down(scratch, head) + scratch->vertical_sums;
}

/* The passes back: gradients in passes->out (overwritten) become gradients of the input, in the
   pair that is returned. `filter` left what this needs in passes->between. */
static Pair passes_backward(const Tile *tile, const Scratch *scratch, long head,
                            const Passes *passes) {
    const Axis *vertical = tile->vertical + head, *horizontal = tile->horizontal + head;
    Pair in = passes->in, between = passes->between, g = passes->out;
    V *down_sums = sums_down(scratch, head), *across_sums = sums_across(scratch, head);
    if (tile->cell_cols == 1 || tile->cell_rows == 1) {
        const Axis *axis = tile->cell_cols == 1 ? vertical : horizontal;
        Lines line = {1, 1, 1};
        kernel_gradient(tile->cell_cols == 1 ? down_sums : across_sums, axis, g, in, line);
        apply(&axis->transposed, g, between, line);
        return between;
    }
    Lines down = vertical_lines(tile), across = horizontal_lines(tile);
    kernel_gradient(across_sums, horizontal, g, between, across);
    apply(&horizontal->transposed, g, between, across);
    kernel_gradient(down_sums, vertical, between, in, down);
    apply(&vertical->transposed, between, g, down);
    return g;
}

/* Gradients in scratch->moments (overwritten) become gradients of x and x^2, in the pair that is
   returned. Adds to the sums of the head. */
static Pair filter_backward(const Tile *tile, const Scratch *scratch, long head, V *x) {
    Passes passes = passes_of(tile, scratch, x);
    if (tile->pool == 1) return passes_backward(tile, scratch, head, &passes);
    pool_pair(tile, scratch->moments, passes.out, SUMS);
    spread_pair(tile, passes_backward(tile, scratch, head, &passes), scratch->moments, MEANS);
    return scratch->moments;
}

static void sums_begin(const Tile *tile, const Scratch *scratch) {
    memset(scratch->sums, 0, tile->heads * scratch->head_sums * sizeof(V));
}

/* Adds to the grad_position (3) of a head. An axis of length 1 has nothing to choose from. */
static void sums_end(const Tile *tile, const Scratch *scratch, long head, double *grad_position) {
    const Axis *vertical = tile->vertical + head, *horizontal = tile->horizontal + head;
    double *a0 = grad_position, *a1 = grad_position + 1, *a2 = grad_position + 2;
    if (tile->cell_rows > 1)
        kernel_gradient_end(sums_down(scratch, head), vertical, scratch->grad_p, a0, a2);
    if (tile->cell_cols > 1)
        kernel_gradient_end(sums_across(scratch, head), horizontal, scratch->grad_p, a0, a1);
}
