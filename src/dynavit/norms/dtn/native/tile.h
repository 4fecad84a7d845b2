/* Tiles: a few neighbouring vectors of channels ("blocks") of one sample, all patch tokens: a part
   of one head, or several whole heads. Reading and writing many blocks of a token together follows
   memory order; all work in between is on one block at a time, in cache. */
#pragma once

#include "job.h"
#include "memory.h"

/* How a call is cut. A unit is the same tile of neighbouring samples, by one thread in one go. */
typedef struct {
    int blocks;     /* of a head in a tile */
    long per_head;  /* tiles that a head is cut into */
    long heads;     /* in a tile, more than 1 only if per_head is 1 */
    long of_sample; /* tiles of one sample */
    long samples;   /* in a unit */
    long units;     /* of the whole call */
} Tiling;

typedef struct {
    long sample, number;               /* the tile's number among those of its sample */
    long head, heads, dim;             /* first head, number of heads, channels of a head */
    long channel;                      /* the first one */
    int blocks, last_lanes;            /* of each head; lanes in use in its last block */
    long start;                        /* of the first patch token, in x */
    long rows, cols, tokens;           /* real patch tokens of the sample */
    long room;                         /* vectors from one block to the next, see room_for */
    long spans, span, pitch;           /* pieces of memory that hold them; tokens in each, and from
                                          one to the next */
    long pool, cell_rows, cell_cols;   /* what the kernels run over; pool 1: the tokens */
    const Axis *vertical, *horizontal; /* (heads) */
    const double *moments;             /* (tokens, 2) */
} Tile;

/* Memory of one thread: the tile's tokens, and tensors of one block. */
typedef struct {
    V *x, *g, *xx;                 /* (heads * blocks, room) input and, backward, gradient;
                                      (tokens) x^2 */
    Pair between, moments;         /* (tokens) after the first pass of two; after the last one */
    Pair pooled[3];                /* (cells) input, after the first pass, after the last one */
    REAL *mean_ln, *var_ln;        /* (tokens) intra-token moments */
    V *sums;                       /* backward: (heads, vertical + horizontal), see filter.h */
    long vertical_sums, head_sums; /* vectors for a head's vertical kernel, and for both */
    double *grad_p;                /* backward: the gradient of one kernel's entries */
} Scratch;

#define SCRATCH_TENSORS 5 /* xx and both pairs */

/* An odd number of vectors: blocks a power of two apart would share few lines of the cache. */
static inline long room_for(long tokens) { return tokens | 1; }

/* ---- cutting a call into tiles ---- */

static inline long least_long(long a, long b) { return a < b ? a : b; }
static inline long most_long(long a, long b) { return a > b ? a : b; }
static inline long ceiling(long a, long b) { return (a + b - 1) / b; }

/* Tiles that fit the cache with `kept` tensors each, in units large enough that what is done once
   per unit costs little, and small enough that every thread gets several. */
static Tiling tiling_of(const Input *in, int kept) {
    long dim = in->channels / in->heads, vectors = ceiling(dim, LANES);
    long vector_of_tokens = in->rows * in->cols * sizeof(V);
    long fit = (CACHE_BYTES / vector_of_tokens - SCRATCH_TENSORS) / kept;
    int blocks = ceiling(vectors, ceiling(vectors, most_long(fit, 1)));
    Tiling tiling = {.blocks = blocks, .per_head = ceiling(dim, blocks * LANES), .heads = 1};
    /* Numbers of heads, then of samples, that can go together. */
    long spare = in->samples * in->heads * tiling.per_head / (UNITS_OF_THREAD * in->threads);
    if (tiling.per_head == 1)
        tiling.heads = most_long(least_long(least_long(fit / blocks, in->heads), spare), 1);
    tiling.heads = ceiling(in->heads, ceiling(in->heads, tiling.heads));
    long sample_bytes = in->rows * in->cols * in->channels * sizeof(REAL);
    long samples = least_long(CACHE_BYTES / (2 * kept * sample_bytes), spare / tiling.heads);
    tiling.samples = in->extents ? 1 : most_long(least_long(samples, MOST_SAMPLES), 1);
    tiling.of_sample = ceiling(in->heads, tiling.heads) * tiling.per_head;
    tiling.units = ceiling(in->samples, tiling.samples) * tiling.of_sample;
    return tiling;
}

static inline long first_sample(const Tiling *tiling, long unit) {
    return unit / tiling->of_sample * tiling->samples;
}

/* One more than the last sample of a unit. */
static inline long end_sample(const Input *in, const Tiling *tiling, long unit) {
    return least_long(first_sample(tiling, unit) + tiling->samples, in->samples);
}

/* The tile of a sample in a unit. */
static Tile tile_at(const Job *job, const Tiling *tiling, long unit, long sample) {
    const Input *in = job->in;
    Tile tile = {.sample = sample, .number = unit % tiling->of_sample};
    long most = tiling->blocks * LANES, inside = tile.number % tiling->per_head * most;
    tile.head = tile.number / tiling->per_head * tiling->heads;
    tile.heads = least_long(tiling->heads, in->heads - tile.head);
    tile.dim = in->channels / in->heads;
    long width = least_long(tile.dim - inside, most);
    tile.channel = tile.head * tile.dim + inside;
    tile.blocks = ceiling(width, LANES);
    tile.last_lanes = width - (tile.blocks - 1) * LANES;
    tile.start = (sample * job->tokens + in->prefix) * in->channels + tile.channel;
    Extent real = extent_of(in, sample);
    int whole = real.cols == in->cols;
    tile.rows = real.rows, tile.cols = real.cols, tile.tokens = real.rows * real.cols;
    tile.spans = whole ? 1 : real.rows, tile.span = whole ? tile.tokens : real.cols;
    tile.pitch = in->cols, tile.room = room_for(tile.tokens);
    tile.pool = in->pool;
    tile.cell_rows = ceiling(real.rows, in->pool), tile.cell_cols = ceiling(real.cols, in->pool);
    long axis = tile.head + (in->extents ? sample * in->heads : 0);
    tile.vertical = job->vertical + axis;
    tile.horizontal = job->horizontal + axis;
    tile.moments = job->moments + 2 * (sample * job->tokens + in->prefix);
    return tile;
}

INLINE int lanes_of(const Tile *tile, int block) {
    return block == tile->blocks - 1 ? tile->last_lanes : LANES;
}

INLINE long channel_of(const Tile *tile, long head, int block) {
    return tile->channel + head * tile->dim + block * LANES;
}

/* Returns 0 if memory is short. */
static int scratch_take(Scratch *scratch, const Job *job, const Tiling *tiling, int backward) {
    long tokens = room_for(job->in->rows * job->in->cols);
    long tile = tiling->heads * tiling->blocks * tokens;
    long of_tokens = ceiling(tokens, LANES); /* vectors for a number of each token */
    long horizontal_sums = 0, entries = 0;
    *scratch = (Scratch){0};
    for (long k = 0; backward && k < axes_of(job->in); k++) {
        const Axis *down = job->vertical + k, *across = job->horizontal + k;
        scratch->vertical_sums = most_long(scratch->vertical_sums, down->sums);
        horizontal_sums = most_long(horizontal_sums, across->sums);
        entries = most_long(entries, most_long(band_size(&down->band), band_size(&across->band)));
    }
    scratch->head_sums = scratch->vertical_sums + horizontal_sums;
    long pool = job->in->pool, cells = 0;
    if (pool > 1) cells = room_for(ceiling(job->in->rows, pool) * ceiling(job->in->cols, pool));
    long vectors = (backward ? 2 : 1) * tile + SCRATCH_TENSORS * tokens + 2 * of_tokens;
    vectors += 6 * cells;
    vectors += tiling->heads * scratch->head_sums;
    V *memory = scratch_memory(TILE_SLOT, vectors * sizeof(V));
    if (!memory) return 0;
    scratch->x = memory, memory += tile;
    if (backward) scratch->g = memory, memory += tile;
    scratch->xx = memory, memory += tokens;
    scratch->between = (Pair){memory, memory + tokens}, memory += 2 * tokens;
    scratch->moments = (Pair){memory, memory + tokens}, memory += 2 * tokens;
    for (int k = 0; k < 3; k++, memory += 2 * cells)
        scratch->pooled[k] = (Pair){memory, memory + cells};
    scratch->mean_ln = (REAL *)memory, memory += of_tokens;
    scratch->var_ln = (REAL *)memory, memory += of_tokens;
    scratch->sums = memory;
    if (!backward) return 1;
    scratch->grad_p = scratch_memory(KERNEL_SLOT, entries * sizeof(double));
    return scratch->grad_p != NULL;
}

/* ---- reading and writing: (tokens, channels) in memory, (blocks, room, LANES) in a tile ---- */

/* Fetches a part of a token ahead, one request for each line of the cache; `to_write` is 0 or 1. */
#define FETCH_AHEAD(from, numbers, to_write)                                                       \
    for (long at = 0; at < (numbers); at += LINE_BYTES / REAL_BYTES)                               \
    __builtin_prefetch((from) + at, to_write)

/* One piece of memory into part of a tile. */
INLINE void read_span(const Tile *tile, const REAL *token, long channels, V *to) {
    long head_numbers = (tile->blocks - 1) * LANES + tile->last_lanes;
    int full = head_numbers / LANES;
    for (long t = 0; t < tile->span; t++, token += channels) {
        FETCH_AHEAD(token + PREFETCH_TOKENS * channels, tile->heads * head_numbers, 0);
        V *column = to + t;
        for (long head = 0; head < tile->heads; head++) {
            const REAL *from = token + head * tile->dim;
            for (int b = 0; b < full; b++, column += tile->room)
                *column = load(from + b * LANES, LANES);
            if (full == tile->blocks) continue;
            *column = load(from + full * LANES, tile->last_lanes), column += tile->room;
        }
    }
}

static void read_tile(const Tile *tile, const REAL *array, long channels, V *to) {
    for (long k = 0; k < tile->spans; k++)
        read_span(tile, array + tile->start + k * tile->pitch * channels, channels,
                  to + k * tile->span);
}

INLINE void write_span(const Tile *tile, const V *from, REAL *token, long channels) {
    long head_numbers = (tile->blocks - 1) * LANES + tile->last_lanes;
    int full = head_numbers / LANES;
    for (long t = 0; t < tile->span; t++, token += channels) {
        FETCH_AHEAD(token + PREFETCH_TOKENS * channels, tile->heads * head_numbers, 1);
        const V *column = from + t;
        for (long head = 0; head < tile->heads; head++) {
            REAL *to = token + head * tile->dim;
            for (int b = 0; b < full; b++, column += tile->room)
                store(to + b * LANES, *column, LANES);
            if (full == tile->blocks) continue;
            store(to + full * LANES, *column, tile->last_lanes), column += tile->room;
        }
    }
}

static void write_tile(const Tile *tile, const V *from, REAL *array, long channels) {
    for (long k = 0; k < tile->spans; k++)
        write_span(tile, from + k * tile->span, array + tile->start + k * tile->pitch * channels,
                   channels);
}

/* Zeros in the padding of a sample, in y or the gradient of x. */
static void clear_padding(const Job *job, long sample, REAL *array) {
    const Input *in = job->in;
    Extent real = extent_of(in, sample);
    size_t c = in->channels;
    REAL *patches = array + (sample * job->tokens + in->prefix) * c;
    for (long row = 0; real.cols < in->cols && row < real.rows; row++)
        memset(patches + (row * in->cols + real.cols) * c, 0,
               (in->cols - real.cols) * c * sizeof(REAL));
    memset(patches + real.rows * in->cols * c, 0,
           (in->rows - real.rows) * in->cols * c * sizeof(REAL));
}

/* ---- the mixture of statistics ---- */

/* Intra-token means are taken relative to that of the sample's first patch token. */
static inline REAL reference_of(const Tile *tile) { return tile->moments[0]; }

/* Brings the tile's intra-token moments into scratch memory. */
static void read_moments(const Tile *tile, const Scratch *scratch) {
    double reference = reference_of(tile);
    REAL *mean_ln = scratch->mean_ln, *var_ln = scratch->var_ln;
    for (long k = 0; k < tile->spans; k++, mean_ln += tile->span, var_ln += tile->span) {
        const double *moments = tile->moments + 2 * k * tile->pitch;
        for (long t = 0; t < tile->span; t++) {
            mean_ln[t] = moments[2 * t] - reference;
            var_ln[t] = moments[2 * t + 1];
        }
    }
}

/* A head's weights of intra-token (l) and inter-token (k) mean and variance. */
typedef struct {
    REAL lm, lv, km, kv, eps;
} Mix;

static Mix mix_of(const Input *in, long head) {
    double lm = in->lam_mean[head], lv = in->lam_var[head];
    return (Mix){lm, lv, 1 - lm, 1 - lv, in->eps};
}
