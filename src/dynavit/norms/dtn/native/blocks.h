/* The rows of a kernel in blocks of nearly equal height, each with the columns that it sees. */
#pragma once

#include <stdlib.h>

#include "band.h"

/* Block q: `height[q]` rows from row[q], columns from[q] <= j < to[q]. Its numbers begin at at[q];
   there is one for each row and column. Block `run` stands for `copies` of itself, each as many
   rows and columns further along as it is high. All in one piece of memory. */
typedef struct {
    int count, run, copies, *row, *height, *from, *to;
    long *at;
} Blocks;

static inline int least(int a, int b) { return a < b ? a : b; }

/* Rows from..to in as few blocks as `most` rows each allow, behind those that are there. */
static void blocks_cut(Blocks *blocks, int from, int to, int most) {
    int rows = to - from, count = (rows + most - 1) / most;
    for (int k = 0; k < count; k++) {
        int q = blocks->count++, end = from + (long)(k + 1) * rows / count;
        blocks->row[q] = from + (long)k * rows / count;
        blocks->height[q] = end - blocks->row[q];
    }
}

/* Rows 0..n-1 in blocks of at most `most` rows; as many rows of `run` as that divides are copies of
   one block of `same` rows. Returns 0 if memory is short; the blocks must be freed in either
   case. */
static int blocks_make(Blocks *blocks, int n, int most, Run run, int same) {
    int copies = run.to > run.from ? (run.to - run.from) / same : 0;
    if (!copies) run.from = 0;
    run.to = run.from + copies * same;
    int room = run.from / most + (n - run.to) / most + 3;
    blocks->at = malloc(room * (sizeof(long) + 4 * sizeof(int)));
    if (!blocks->at) return 0;
    blocks->row = (int *)(blocks->at + room);
    blocks->height = blocks->row + room;
    blocks->from = blocks->height + room;
    blocks->to = blocks->from + room;
    blocks->count = 0;
    blocks_cut(blocks, 0, run.from, most);
    blocks->run = copies ? blocks->count : -1;
    blocks->copies = copies;
    if (copies) blocks_cut(blocks, run.from, run.from + same, same);
    blocks_cut(blocks, run.to, n, most);
    return 1;
}

static void blocks_free(Blocks *blocks) { free(blocks->at); }

/* Columns of each block: from the first to the last that any of its rows sees. */
static void blocks_find_columns(Blocks *blocks, const Band *band) {
    for (int q = 0; q < blocks->count; q++) {
        int from = band->n, to = 0;
        for (int i = blocks->row[q]; i < blocks->row[q] + blocks->height[q]; i++) {
            int end = band->first[i] + band->count[i];
            if (band->first[i] < from) from = band->first[i];
            if (end > to) to = end;
        }
        blocks->from[q] = from, blocks->to[q] = to;
    }
}

/* The same for the transposed band, whose rows see what lies within reach of them. */
static void blocks_find_rows(Blocks *blocks, const Band *band) {
    for (int q = 0; q < blocks->count; q++) {
        int row = blocks->row[q], end = row + blocks->height[q];
        int begin = row > band->reach ? row - band->reach : 0, from = band->n, to = 0;
        for (int i = begin; i < band->n && i < end + band->reach; i++) {
            if (band->first[i] >= end || band->first[i] + band->count[i] <= row) continue;
            if (from == band->n) from = i;
            to = i + 1;
        }
        blocks->from[q] = least(from, to), blocks->to[q] = to; /* empty if nobody sees them */
    }
}

/* Sets where the numbers of each block begin; returns how many there are. */
static long blocks_place(Blocks *blocks) {
    long total = 0;
    for (int q = 0; q < blocks->count; q++) {
        blocks->at[q] = total;
        total += (long)(blocks->to[q] - blocks->from[q]) * blocks->height[q];
    }
    return total;
}
