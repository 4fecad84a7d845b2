/* The forward pass. */
#pragma once

#include "filter.h"

/* Mean and variance of `count` tokens over their n channels: moments (count, 2). Taken together
   they hide the latency of their sums. The second pass corrects the mean, so large offsets do no
   harm. */
INLINE void token_moments(const REAL *x, long n, int ddof, double *moments, const int count) {
    V total[TOKENS_AT_ONCE] = {0}, powers[2 * TOKENS_AT_ONCE] = {0};
    double rest[TOKENS_AT_ONCE] = {0}, shift[TOKENS_AT_ONCE] = {0}, square[TOKENS_AT_ONCE] = {0};
    REAL centre[TOKENS_AT_ONCE], totals[2 * TOKENS_AT_ONCE];
    long whole = n / LANES * LANES;
    for (long c = 0; c < whole; c += LANES) {
        UNROLL
        for (int t = 0; t < count; t++) {
            __builtin_prefetch(x + (t + TOKENS_AT_ONCE) * n + c);
            total[t] += load(x + t * n + c, LANES);
        }
    }
    for (long c = whole; c < n; c++)
        for (int t = 0; t < count; t++) rest[t] += x[t * n + c];
    lane_sums(total, count, totals);
    for (int t = 0; t < count; t++) centre[t] = (totals[t] + rest[t]) / n;
    for (long c = 0; c < whole; c += LANES) {
        UNROLL
        for (int t = 0; t < count; t++) {
            V apart = load(x + t * n + c, LANES) - centre[t];
            powers[2 * t] += apart, powers[2 * t + 1] += apart * apart;
        }
    }
    for (long c = whole; c < n; c++)
        for (int t = 0; t < count; t++) {
            double apart = x[t * n + c] - centre[t];
            shift[t] += apart, square[t] += apart * apart;
        }
    lane_sums(powers, 2 * count, totals);
    for (int t = 0; t < count; t++) {
        double first = (shift[t] + totals[2 * t]) / n, second = square[t] + totals[2 * t + 1];
        moments[2 * t] = centre[t] + first;
        moments[2 * t + 1] = fmax(second - n * first * first, 0) / (n - ddof > 0 ? n - ddof : 1);
    }
}

/* A prefix token is normalised by its own moments, as in LayerNorm. */
static void forward_prefix(const Job *job, long row, REAL *y) {
    const Input *in = job->in;
    long c = in->channels;
    const REAL *x = in->x + row * c;
    const double *moments = job->moments + 2 * row;
    REAL high = moments[0], low = moments[0] - high, scale = 1 / sqrt(moments[1] + in->eps);
    for (long k = 0; k < c; k++) {
        REAL value = (x[k] - high - low) * scale;
        y[row * c + k] =
            (in->weight ? value * in->weight[k] : value) + (in->bias ? in->bias[k] : 0);
    }
}

/* Intra-token moments of tokens that stand one behind the other. */
static void moments_of(const Job *job, long row, long tokens) {
    const Input *in = job->in;
    long c = in->channels, end = row + tokens;
    for (; row + TOKENS_AT_ONCE <= end; row += TOKENS_AT_ONCE)
        token_moments(in->x + row * c, c, in->ddof, job->moments + 2 * row, TOKENS_AT_ONCE);
    for (; row < end; row++) token_moments(in->x + row * c, c, in->ddof, job->moments + 2 * row, 1);
}

/* Intra-token moments of all real tokens of a sample; its prefix tokens are also normalised, and
   its padding becomes 0. */
static void forward_tokens(const Job *job, long sample, REAL *y) {
    const Input *in = job->in;
    long first = sample * job->tokens, patches = first + in->prefix;
    Extent real = extent_of(in, sample);
    if (real.cols == in->cols)
        moments_of(job, first, in->prefix + real.rows * real.cols);
    else {
        moments_of(job, first, in->prefix);
        for (long k = 0; k < real.rows; k++) moments_of(job, patches + k * in->cols, real.cols);
    }
    for (long k = 0; k < in->prefix; k++) forward_prefix(job, first + k, y);
    if (in->extents) clear_padding(job, sample, y);
}

/* One block of a tile, in place. */
static void forward_block(const Tile *tile, const Scratch *scratch, const Mix *mix, long head, V *x,
                          V weight, V bias) {
    V offset = centre_block(x, scratch->xx, tile->tokens, reference_of(tile));
    filter(tile, scratch, head, x);
    const V *m = scratch->moments.first, *s = scratch->moments.second;
    const REAL lm = mix->lm, lv = mix->lv, km = mix->km, kv = mix->kv, eps = mix->eps;
    const REAL *mean_ln = scratch->mean_ln, *var_ln = scratch->var_ln;
    for (long t = 0; t < tile->tokens; t++) {
        V variance = s[t] - m[t] * m[t];
        variance = unless_negative(variance, variance);
        V numerator = x[t] - km * m[t] - lm * (mean_ln[t] - offset);
        x[t] = numerator * inverse_root(lv * var_ln[t] + eps + kv * variance) * weight + bias;
    }
}

static void forward_tile(const Input *in, const Tile *tile, const Scratch *scratch, REAL *y) {
    if (!tile->tokens) return; /* padding alone */
    read_moments(tile, scratch);
    read_tile(tile, in->x, in->channels, scratch->x);
    V *x = scratch->x;
    for (long head = 0; head < tile->heads; head++) {
        Mix mix = mix_of(in, tile->head + head);
        for (int b = 0; b < tile->blocks; b++, x += tile->room) {
            long channel = channel_of(tile, head, b);
            int lanes = lanes_of(tile, b);
            V weight = in->weight ? load(in->weight + channel, lanes) : same(1);
            V bias = in->bias ? load(in->bias + channel, lanes) : same(0);
            forward_block(tile, scratch, &mix, head, x, weight, bias);
        }
    }
    write_tile(tile, scratch->x, y, in->channels);
}

static void forward_unit(const Job *job, const Tiling *tiling, long unit, const Scratch *scratch,
                         REAL *y) {
    long end = end_sample(job->in, tiling, unit);
    for (long sample = first_sample(tiling, unit); sample < end; sample++) {
        Tile tile = tile_at(job, tiling, unit, sample);
        forward_tile(job->in, &tile, scratch, y);
    }
}

/* Everything for the samples of some units, whose tokens are then read from memory only once. */
static void forward_samples(const Job *job, const Tiling *tiling, long first_unit,
                            const Scratch *scratch, REAL *y) {
    long from = first_sample(tiling, first_unit), to = end_sample(job->in, tiling, first_unit);
    for (long sample = from; sample < to; sample++) forward_tokens(job, sample, y);
    for (long unit = first_unit; unit < first_unit + tiling->of_sample; unit++)
        forward_unit(job, tiling, unit, scratch, y);
}

/* y (samples, tokens, channels). Returns 0 if memory is short. */
static int forward(const Job *job, REAL *y) {
    const Input *in = job->in;
    const Tiling tiling = tiling_of(in, 1);
    const int whole_samples = tiling.units / tiling.of_sample >= in->threads;
    int failed = 0;
    OMP(parallel num_threads(in->threads) reduction(| : failed))
    {
        Scratch scratch;
        failed = !scratch_take(&scratch, job, &tiling, 0);
        if (whole_samples) {
            OMP(for schedule(static))
            for (long unit = 0; unit < tiling.units; unit += tiling.of_sample)
                if (!failed) forward_samples(job, &tiling, unit, &scratch, y);
        } else { /* threads share samples, so their tokens come first */
            OMP(for schedule(static))
            for (long sample = 0; sample < in->samples; sample++) forward_tokens(job, sample, y);
            OMP(for schedule(static))
            for (long unit = 0; unit < tiling.units; unit++)
                if (!failed) forward_unit(job, &tiling, unit, &scratch, y);
        }
    }
    return !failed;
}
