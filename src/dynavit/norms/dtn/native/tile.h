/* Tiles: a few neighbouring vectors of channels ("blocks") of one head of one sample, all patch
   tokens. Reading and writing several blocks of a token together follows memory order; all work in
   between is on one block at a time, in cache. */
#pragma once

#include "job.h"
#include "memory.h"

typedef struct {
    int blocks;           /* of the largest tile */
    long per_head, tiles; /* tiles of one head of one sample; of the whole call */
} Tiling;

typedef struct {
    long sample, head, channel;        /* the first channel */
    int blocks, last_lanes;            /* lanes in use in the last block; all others are full */
    long start;                        /* of the first patch token, in x */
    long rows, cols, tokens;           /* real patch tokens of the sample */
    const Axis *vertical, *horizontal; /* of the head */
    const double *moments;             /* (tokens, 2) */
} Tile;

/* Memory of one thread: the tile's tokens, and tensors of one block. */
typedef struct {
    V *x, *g, *xx;         /* (blocks, tokens) input and, backward, gradient; (tokens) x^2 */
    Pair between, moments; /* (tokens) after the first pass of two; after the last one */
    double *grad_p;        /* backward: the gradient of one kernel's entries */
} Scratch;

#define SCRATCH_TENSORS 5 /* xx and both pairs */

/* ---- cutting a call into tiles ---- */

/* Tiles that fit the cache with `kept` tensors each. */
static Tiling tiling_of(const Input *in, int kept) {
    long dim = in->channels / in->heads, vectors = (dim + LANES - 1) / LANES;
    long vector_of_tokens = in->rows * in->cols * sizeof(V);
    long most = (CACHE_BYTES / vector_of_tokens - SCRATCH_TENSORS) / kept;
    if (most < 1) most = 1;
    long even_share = (vectors + most - 1) / most;
    int blocks = (vectors + even_share - 1) / even_share;
    long per_head = (dim + blocks * LANES - 1) / (blocks * LANES);
    return (Tiling){blocks, per_head, in->samples * in->heads * per_head};
}

static Tile tile_at(const Job *job, const Tiling *tiling, long number) {
    const Input *in = job->in;
    long dim = in->channels / in->heads, most = tiling->blocks * LANES;
    long inside = number % tiling->per_head * most;
    long width = dim - inside < most ? dim - inside : most;
    Tile tile = {.head = number / tiling->per_head % in->heads};
    tile.sample = number / (in->heads * tiling->per_head);
    tile.channel = tile.head * dim + inside;
    tile.blocks = (width + LANES - 1) / LANES;
    tile.last_lanes = width - (tile.blocks - 1) * LANES;
    tile.start = (tile.sample * job->tokens + in->prefix) * in->channels + tile.channel;
    tile.rows = in->lengths ? in->lengths[tile.sample] : in->rows;
    tile.cols = in->cols;
    tile.tokens = tile.rows * tile.cols;
    long axis = tile.head + (in->lengths ? tile.sample * in->heads : 0);
    tile.vertical = job->vertical + axis;
    tile.horizontal = job->horizontal + axis;
    tile.moments = job->moments + 2 * (tile.sample * job->tokens + in->prefix);
    return tile;
}

INLINE int lanes_of(const Tile *tile, int block) {
    return block == tile->blocks - 1 ? tile->last_lanes : LANES;
}

/* Returns 0 if memory is short. */
static int scratch_take(Scratch *scratch, const Input *in, const Tiling *tiling, int backward) {
    long tokens = in->rows * in->cols, tile = tiling->blocks * tokens;
    long tensors = (backward ? 2 : 1) * tile + SCRATCH_TENSORS * tokens;
    V *memory = scratch_memory(TILE_SLOT, tensors * sizeof(V));
    if (!memory) return 0;
    scratch->x = memory;
    scratch->g = memory + tile; /* not used forward */
    V *block = memory + tensors - SCRATCH_TENSORS * tokens;
    scratch->xx = block;
    scratch->between = (Pair){block + tokens, block + 2 * tokens};
    scratch->moments = (Pair){block + 3 * tokens, block + 4 * tokens};
    if (!backward) return 1;
    long rows = in->rows * band_width(in->rows, in->radius);
    long cols = in->cols * band_width(in->cols, in->radius);
    scratch->grad_p = scratch_memory(KERNEL_SLOT, (rows > cols ? rows : cols) * sizeof(double));
    return scratch->grad_p != NULL;
}

/* ---- reading and writing: (tokens, channels) in memory, (blocks, tokens, LANES) in a tile ---- */

static void read_tile(const Tile *tile, const REAL *array, long channels, V *to) {
    const REAL *from = array + tile->start;
    for (long t = 0; t < tile->tokens; t++, from += channels)
        for (int b = 0; b < tile->blocks; b++) {
            __builtin_prefetch(from + b * LANES + PREFETCH_TOKENS * channels);
            to[b * tile->tokens + t] = load(from + b * LANES, lanes_of(tile, b));
        }
}

static void write_tile(const Tile *tile, const V *from, REAL *array, long channels) {
    REAL *to = array + tile->start;
    for (long t = 0; t < tile->tokens; t++, to += channels)
        for (int b = 0; b < tile->blocks; b++) {
            __builtin_prefetch(to + b * LANES + PREFETCH_TOKENS * channels, 1);
            store(to + b * LANES, from[b * tile->tokens + t], lanes_of(tile, b));
        }
}

/* ---- the mixture of statistics ---- */

/* Numbers that all tokens of a tile share: weights of intra-token (l) and inter-token (k) mean and
   variance. Means are taken relative to `reference`, the mean of the sample's first patch token. */
typedef struct {
    REAL lm, lv, km, kv;
    double eps, reference;
} Mix;

static Mix mix_of(const Tile *tile, const Input *in) {
    double lm = in->lam_mean[tile->head], lv = in->lam_var[tile->head];
    return (Mix){lm, lv, 1 - lm, 1 - lv, in->eps, (REAL)tile->moments[0]};
}
