/* The separable average over tokens, on one block of a tile, and its transpose. */
#pragma once

#include "kernel_gradient.h"
#include "tile.h"

/* Moves a block to coordinates in which each channel has mean 0, and squares it: second moments of
   centred numbers do not cancel. Returns the centre, relative to `reference`. No result depends on
   the exact centre. */
static V centre_block(V *x, V *xx, long tokens, REAL reference) {
    V origin = x[0], partial[4] = {{0}, {0}, {0}, {0}};
    for (long t = 0; t < tokens; t++) partial[t & 3] += x[t] - origin;
    V centre = origin + (partial[0] + partial[1] + partial[2] + partial[3]) / (REAL)tokens;
    for (long t = 0; t < tokens; t++) {
        x[t] -= centre;
        xx[t] = x[t] * x[t];
    }
    return centre - reference;
}

INLINE Lines vertical_lines(const Tile *tile) { return (Lines){tile->cols, tile->cols, 1}; }

INLINE Lines horizontal_lines(const Tile *tile) { return (Lines){1, tile->rows, tile->cols}; }

/* P x and P x^2 into scratch->moments. A pass over an axis of length 1 would change nothing and is
   left out. */
static void filter(const Tile *tile, const Scratch *scratch, V *x) {
    const Panel *vertical = &tile->vertical->forward, *horizontal = &tile->horizontal->forward;
    Pair in = {x, scratch->xx};
    if (tile->cols == 1) {
        apply(vertical, in, scratch->moments, (Lines){1, 1, 1});
    } else if (tile->rows == 1) {
        apply(horizontal, in, scratch->moments, (Lines){1, 1, 1});
    } else {
        apply(vertical, in, scratch->between, vertical_lines(tile));
        apply(horizontal, scratch->between, scratch->moments, horizontal_lines(tile));
    }
}

/* The transpose: gradients in scratch->moments (overwritten) become gradients of x and x^2 in
   scratch->between, where `filter` left what it needs. Adds to the kernels' grad_position (3). */
static void filter_backward(const Tile *tile, const Scratch *scratch, V *x, double *grad_position) {
    const Axis *vertical = tile->vertical, *horizontal = tile->horizontal;
    Pair in = {x, scratch->xx}, between = scratch->between, g = scratch->moments;
    double *a0 = grad_position, *a1 = grad_position + 1, *a2 = grad_position + 2;
    if (tile->cols == 1 || tile->rows == 1) {
        const Axis *axis = tile->cols == 1 ? vertical : horizontal;
        Lines line = {1, 1, 1};
        kernel_gradient(axis, g, in, line, scratch->grad_p, a0, tile->cols == 1 ? a2 : a1);
        apply(&axis->transposed, g, between, line);
        return;
    }
    Lines down = vertical_lines(tile), across = horizontal_lines(tile);
    kernel_gradient(horizontal, g, between, across, scratch->grad_p, a0, a1);
    apply(&horizontal->transposed, g, between, across);
    kernel_gradient(vertical, between, in, down, scratch->grad_p, a0, a2);
    apply(&vertical->transposed, between, g, down);
    memcpy(between.first, g.first, tile->tokens * sizeof(V));
    memcpy(between.second, g.second, tile->tokens * sizeof(V));
}
