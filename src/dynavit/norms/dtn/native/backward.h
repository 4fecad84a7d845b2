/* The backward pass. It computes the statistics again: only the input and its intra-token moments
   are kept from the forward pass. */
#pragma once

#include "filter.h"

/* Gradients of a call; all but x's are added to. */
typedef struct {
    REAL *x;                               /* (samples, tokens, channels) */
    double *weight, *bias;                 /* (channels) */
    double *lam_mean, *lam_var, *position; /* (heads), (heads), (heads, 3) */
} Gradients;

typedef struct {
    double lam_mean, lam_var, position[3];
} HeadGradient;

/* Results that each tile or unit leaves in its own place, for the sums at the end. */
typedef struct {
    long groups; /* of LANES patch tokens in a sample */
    V *intra;    /* (samples, tiles, 2, groups): gradients of intra-token means, variances */
    HeadGradient *heads; /* (units, heads of a tile) */
    double *affine;      /* (samples, channels, 2): gradients of weight and bias */
    long *unfinished;    /* (samples) tiles that are still to come */
} Partial;

static void partial_free(Partial *partial) {
    free(partial->heads);
    free(partial->affine);
    free(partial->unfinished);
}

/* Returns 0 if memory is short; `partial_free` frees in either case. */
static int partial_make(Partial *partial, const Input *in, const Tiling *tiling) {
    long groups = ceiling(in->rows * in->cols, LANES);
    size_t tiles = in->samples * tiling->of_sample;
    partial->groups = groups;
    partial->intra = scratch_memory(PARTIAL_SLOT, tiles * 2 * groups * sizeof(V));
    partial->heads = calloc(tiling->units * tiling->heads, sizeof(HeadGradient));
    partial->affine = calloc((size_t)in->samples * in->channels * 2, sizeof(double));
    partial->unfinished = malloc(in->samples * sizeof(long));
    if (!partial->intra || !partial->heads || !partial->affine || !partial->unfinished) return 0;
    for (long sample = 0; sample < in->samples; sample++)
        partial->unfinished[sample] = tiling->of_sample;
    return 1;
}

/* ---- one block of a tile ---- */

typedef struct {
    V *x, *g;                  /* (tokens) centred input; gradient of y */
    V weight, offset;          /* gain; centre of x, relative to reference_of(tile) */
    V *intra_mean, *intra_var; /* (groups) gradients of the tokens' intra-token moments */
    int first;                 /* of its tile: starts intra_*, to which the others add */
} Block;

/* Sums over the tokens of a block, lane by lane. */
typedef struct {
    V weight, bias, lam_mean, lam_var;
} BlockSums;

/* From the gradient of y to that of the numerator (in place of block->g), of the inter-token
   moments (in place of scratch->moments) and of the intra-token ones. */
static BlockSums backward_moments(const Tile *tile, const Scratch *scratch, const Mix *mix,
                                  const Block *block) {
    V *m = scratch->moments.first, *s = scratch->moments.second, *g = block->g;
    const V *x = block->x, weight = block->weight, offset = block->offset;
    const REAL lm = mix->lm, lv = mix->lv, km = mix->km, kv = mix->kv, eps = mix->eps;
    const REAL *mean_ln = scratch->mean_ln, *var_ln = scratch->var_ln;
    BlockSums sum = {{0}, {0}, {0}, {0}};
    V to_mean[LANES], to_var[LANES];
    for (long t = 0, tokens = tile->tokens; t < tokens; t++) {
        V variance = s[t] - m[t] * m[t];
        V used = unless_negative(variance, same(kv)); /* a clamped variance passes no gradient */
        variance = unless_negative(variance, variance);
        V apart = mean_ln[t] - offset; /* intra-token mean, in the block's coordinates */
        V numerator = x[t] - km * m[t] - lm * apart;
        V scale = inverse_root(lv * var_ln[t] + eps + kv * variance);
        V unit = numerator * scale;
        sum.weight += g[t] * unit, sum.bias += g[t];
        V dn = g[t] * weight * scale, dvar = dn * unit * scale * (REAL)-0.5;
        sum.lam_mean += dn * (m[t] - apart), sum.lam_var += dvar * (var_ln[t] - variance);
        to_mean[t % LANES] = dn, to_var[t % LANES] = dvar;
        if (t % LANES == LANES - 1 || t == tokens - 1) {
            V *mean = block->intra_mean + t / LANES, *var = block->intra_var + t / LANES;
            V more_mean = -lm * sums(to_mean, LANES), more_var = lv * sums(to_var, LANES);
            *mean = block->first ? more_mean : *mean + more_mean;
            *var = block->first ? more_var : *var + more_var;
        }
        V ds = used * dvar;
        m[t] = -km * dn - 2 * m[t] * ds, s[t] = ds;
        g[t] = dn;
    }
    return sum;
}

/* Block b of a head: x and the gradient of y in, the gradient of x out (in place of g), except for
   the part through the intra-token moments. */
static void backward_block(const Input *in, const Tile *tile, const Scratch *scratch,
                           const Mix *mix, long head, int b, Block *block, const Partial *partial,
                           HeadGradient *grad) {
    long tokens = tile->tokens, channel = channel_of(tile, head, b);
    int lanes = lanes_of(tile, b);
    V *x = block->x, *g = block->g;
    block->weight = in->weight ? load(in->weight + channel, lanes) : same(1);
    block->offset = centre_block(x, scratch->xx, tokens, reference_of(tile));
    filter(tile, scratch, head, x);
    BlockSums sums = backward_moments(tile, scratch, mix, block);
    grad->lam_mean += sum(sums.lam_mean), grad->lam_var += sum(sums.lam_var);
    double *affine = partial->affine + 2 * (tile->sample * in->channels + channel);
    for (int l = 0; l < lanes; l++)
        affine[2 * l] = sums.weight[l], affine[2 * l + 1] = sums.bias[l];
    Pair z = filter_backward(tile, scratch, head, x);
    for (long t = 0; t < tokens; t++) g[t] += z.first[t] + 2 * x[t] * z.second[t];
}

/* ---- tiles and samples ---- */

/* Adds to one token's channels what comes through its intra-token mean and variance. */
static void add_intra(const Job *job, long row, double grad_mean, double grad_var, REAL *grad_x) {
    long c = job->in->channels, divisor = c - job->in->ddof > 0 ? c - job->in->ddof : 1;
    const REAL *x = job->in->x + row * c;
    double mean = job->moments[2 * row];
    REAL high = mean, low = mean - high, add = grad_mean / c, slope = 2 * grad_var / divisor;
    REAL *to = grad_x + row * c;
    long whole = c / LANES * LANES;
    for (long k = 0; k < whole; k += LANES) {
        V more = add + slope * (load(x + k, LANES) - high - low);
        store(to + k, load(to + k, LANES) + more, LANES);
    }
    for (long k = whole; k < c; k++) to[k] += add + slope * (x[k] - high - low);
}

/* The same for all patch tokens of a sample whose tiles are all done. */
static void finish_sample(const Job *job, const Tiling *tiling, const Partial *partial,
                          const Tile *tile, REAL *grad_x) {
    long tiles = tiling->of_sample, groups = partial->groups;
    long first = tile->sample * job->tokens + job->in->prefix;
    const V *mean = partial->intra + tile->sample * tiles * 2 * groups, *var = mean + groups;
    for (long group = 0; group * LANES < tile->tokens; group++) {
        V grad_mean = {0}, grad_var = {0};
        for (long k = 0; k < tiles; k++) {
            grad_mean += mean[k * 2 * groups + group];
            grad_var += var[k * 2 * groups + group];
        }
        for (long l = 0, t = group * LANES; l < LANES && t < tile->tokens; l++, t++) {
            long row = first + t / tile->span * tile->pitch + t % tile->span;
            add_intra(job, row, grad_mean[l], grad_var[l], grad_x);
        }
    }
}

static void backward_tile(const Job *job, const Tiling *tiling, const Partial *partial,
                          const Tile *tile, const Scratch *scratch, const REAL *grad_y,
                          REAL *grad_x, HeadGradient *grad) {
    const Input *in = job->in;
    if (in->extents && tile->number == 0) clear_padding(job, tile->sample, grad_x);
    if (!tile->tokens) return;
    read_moments(tile, scratch);
    read_tile(tile, in->x, in->channels, scratch->x);
    read_tile(tile, grad_y, in->channels, scratch->g);
    long number = tile->sample * tiling->of_sample + tile->number;
    Block block = {.x = scratch->x, .g = scratch->g, .first = 1};
    block.intra_mean = partial->intra + number * 2 * partial->groups;
    block.intra_var = block.intra_mean + partial->groups;
    for (long head = 0; head < tile->heads; head++) {
        Mix mix = mix_of(in, tile->head + head);
        for (int b = 0; b < tile->blocks; b++) {
            backward_block(in, tile, scratch, &mix, head, b, &block, partial, grad + head);
            block.x += tile->room, block.g += tile->room, block.first = 0;
        }
    }
    write_tile(tile, scratch->g, grad_x, in->channels);
    /* The thread that writes a sample's last tile finishes it, while it is in cache. */
    if (!__atomic_sub_fetch(partial->unfinished + tile->sample, 1, __ATOMIC_ACQ_REL))
        finish_sample(job, tiling, partial, tile, grad_x);
}

static void backward_unit(const Job *job, const Tiling *tiling, const Partial *partial, long unit,
                          const Scratch *scratch, const REAL *grad_y, REAL *grad_x) {
    long first = first_sample(tiling, unit), end = end_sample(job->in, tiling, unit);
    HeadGradient *grad = partial->heads + unit * tiling->heads;
    Tile tile = tile_at(job, tiling, unit, first);
    sums_begin(&tile, scratch);
    for (long sample = first; sample < end; sample++) {
        tile = tile_at(job, tiling, unit, sample);
        backward_tile(job, tiling, partial, &tile, scratch, grad_y, grad_x, grad);
    }
    for (long head = 0; tile.tokens && head < tile.heads; head++)
        sums_end(&tile, scratch, head, grad[head].position);
}

/* LayerNorm's own backward pass for one prefix token. */
static void backward_prefix(const Job *job, long row, const REAL *grad_y, const Gradients *grad) {
    const Input *in = job->in;
    long c = in->channels;
    const REAL *x = in->x + row * c, *gy = grad_y + row * c;
    double mean = job->moments[2 * row], scale = 1 / sqrt(job->moments[2 * row + 1] + in->eps);
    double grad_mean = 0, grad_var = 0;
    for (long k = 0; k < c; k++) {
        double g = gy[k] * (in->weight ? in->weight[k] : 1), unit = (x[k] - mean) * scale;
        grad->x[row * c + k] = g * scale;
        grad_mean -= g * scale, grad_var -= 0.5 * g * unit * scale * scale;
        grad->weight[k] += gy[k] * unit, grad->bias[k] += gy[k];
    }
    add_intra(job, row, grad_mean, grad_var, grad->x);
}

/* In a fixed order, whichever thread did which tile. */
static void add_up(const Input *in, const Tiling *tiling, const Partial *partial,
                   const Gradients *grad) {
    const double *affine = partial->affine;
    for (long sample = 0; sample < in->samples; sample++)
        for (long k = 0; k < in->channels; k++, affine += 2)
            grad->weight[k] += affine[0], grad->bias[k] += affine[1];
    for (long unit = 0; unit < tiling->units; unit++) {
        long head = unit % tiling->of_sample / tiling->per_head * tiling->heads;
        const HeadGradient *mine = partial->heads + unit * tiling->heads;
        for (long k = 0; k < tiling->heads && head < in->heads; k++, head++, mine++) {
            grad->lam_mean[head] += mine->lam_mean, grad->lam_var[head] += mine->lam_var;
            for (int a = 0; a < 3; a++) grad->position[3 * head + a] += mine->position[a];
        }
    }
}

/* All tiles, on all threads. Returns 0 if memory is short. */
static int backward_tiles(const Job *job, const Tiling *tiling, const Partial *partial,
                          const REAL *grad_y, REAL *grad_x) {
    int failed = 0;
    OMP(parallel num_threads(job->in->threads) reduction(| : failed))
    {
        Scratch scratch;
        failed = !scratch_take(&scratch, job, tiling, 1);
        OMP(for schedule(static))
        for (long unit = 0; unit < tiling->units; unit++)
            if (!failed) backward_unit(job, tiling, partial, unit, &scratch, grad_y, grad_x);
    }
    return !failed;
}

/* Returns 0 if memory is short. */
static int backward(const Job *job, const REAL *grad_y, const Gradients *grad) {
    const Input *in = job->in;
    const Tiling tiling = tiling_of(in, 2);
    Partial partial;
    int done = partial_make(&partial, in, &tiling) &&
               backward_tiles(job, &tiling, &partial, grad_y, grad->x);
    if (done) {
        for (long sample = 0; sample < in->samples; sample++)
            for (long k = 0; k < in->prefix; k++)
                backward_prefix(job, sample * job->tokens + k, grad_y, grad);
        add_up(in, &tiling, &partial, grad);
    }
    partial_free(&partial);
    return done;
}
