/* Pooling: statistics of cells of pool x pool tokens, of which the last ones may be cut short. */
#pragma once

#include "tile.h"

typedef enum { SUMS, MEANS } Pooled;

/* Number of real tokens in a cell's row or column. */
INLINE long cell_side(long cell, long pool, long tokens) {
    return least_long(pool, tokens - cell * pool);
}

/* Sums or means over the tokens of each cell, of one tensor. */
static void pool_tensor(const Tile *tile, const V *tokens, V *cells, Pooled kind) {
    long pool = tile->pool;
    memset(cells, 0, tile->cell_rows * tile->cell_cols * sizeof(V));
    for (long row = 0; row < tile->rows; row++, tokens += tile->cols) {
        V *to = cells + row / pool * tile->cell_cols;
        for (long cell = 0, col = 0; cell < tile->cell_cols; cell++)
            for (long end = least_long(col + pool, tile->cols); col < end; col++)
                to[cell] += tokens[col];
    }
    for (long row = 0; kind == MEANS && row < tile->cell_rows; row++)
        for (long cell = 0; cell < tile->cell_cols; cell++, cells++)
            *cells /= (REAL)(cell_side(row, pool, tile->rows) * cell_side(cell, pool, tile->cols));
}

/* Each token takes what its cell has, or its part of it. */
static void spread_tensor(const Tile *tile, const V *cells, V *tokens, Pooled kind) {
    long pool = tile->pool;
    for (long row = 0; row < tile->rows; row++, tokens += tile->cols) {
        const V *from = cells + row / pool * tile->cell_cols;
        long height = cell_side(row / pool, pool, tile->rows);
        for (long cell = 0, col = 0; cell < tile->cell_cols; cell++) {
            long end = least_long(col + pool, tile->cols);
            V part = kind == SUMS ? from[cell] : from[cell] / (REAL)(height * (end - col));
            for (; col < end; col++) tokens[col] = part;
        }
    }
}

static void pool_pair(const Tile *tile, Pair tokens, Pair cells, Pooled kind) {
    pool_tensor(tile, tokens.first, cells.first, kind);
    pool_tensor(tile, tokens.second, cells.second, kind);
}

/* The transpose of `pool_pair`. */
static void spread_pair(const Tile *tile, Pair cells, Pair tokens, Pooled kind) {
    spread_tensor(tile, cells.first, tokens.first, kind);
    spread_tensor(tile, cells.second, tokens.second, kind);
}
