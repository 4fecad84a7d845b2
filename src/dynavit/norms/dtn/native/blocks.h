/* The rows of a kernel in blocks of nearly equal height, each with the columns that it sees. */
#pragma once

#include <stdlib.h>

#include "band.h"

/* Block q: rows row[q] <= i < row[q + 1], columns from[q] <= j < to[q]. Its numbers begin at at[q];
   there is one for each row and column. Row i stands in block of[i]. All in one piece of memory. */
typedef struct {
    int count, *row, *of, *from, *to;
    long *at;
} Blocks;

static inline int least(int a, int b) { return a < b ? a : b; }

static inline int height_of(const Blocks *blocks, int q) {
    return blocks->row[q + 1] - blocks->row[q];
}

/* Rows 0..n-1 in as few blocks as `most` rows each allow. Returns 0 if memory is short; the blocks
   must be freed in either case. */
static int blocks_make(Blocks *blocks, int n, int most) {
    int count = (n + most - 1) / most;
    blocks->count = count;
    blocks->at = malloc(count * sizeof(long) + (3 * count + 1 + n) * sizeof(int));
    if (!blocks->at) return 0;
    blocks->row = (int *)(blocks->at + count);
    blocks->of = blocks->row + count + 1;
    blocks->from = blocks->of + n;
    blocks->to = blocks->from + count;
    for (int q = 0; q <= count; q++) blocks->row[q] = (long)q * n / count;
    for (int q = 0; q < count; q++)
        for (int i = blocks->row[q]; i < blocks->row[q + 1]; i++) blocks->of[i] = q;
    return 1;
}

static void blocks_free(Blocks *blocks) { free(blocks->at); }

/* Columns of each block: from the first to the last that any of its rows sees. */
static void blocks_find_columns(Blocks *blocks, const Band *band, int transpose) {
    for (int q = 0; q < blocks->count; q++) blocks->from[q] = band->n, blocks->to[q] = 0;
    for (int i = 0; i < band->n; i++) {
        /* Both ends of a row are enough, but a transposed row shows only in all of its columns. */
        int last = band->count[i] - 1, stride = transpose || last < 1 ? 1 : last;
        for (int k = 0; k <= last; k += stride) {
            int j = band->first[i] + k, column = transpose ? i : j;
            int q = blocks->of[transpose ? j : i];
            if (column < blocks->from[q]) blocks->from[q] = column;
            if (column + 1 > blocks->to[q]) blocks->to[q] = column + 1;
        }
    }
}

/* Sets where the numbers of each block begin; returns how many there are. */
static long blocks_place(Blocks *blocks) {
    long total = 0;
    for (int q = 0; q < blocks->count; q++) {
        if (blocks->to[q] < blocks->from[q]) blocks->from[q] = blocks->to[q] = 0; /* unseen */
        blocks->at[q] = total;
        total += (long)(blocks->to[q] - blocks->from[q]) * height_of(blocks, q);
    }
    return total;
}
