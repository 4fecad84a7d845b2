/* The forward pass. */
#pragma once

#include "filter.h"

/* Mean and variance of one token over its n channels. The second pass corrects the mean, so large
   offsets do no harm. */
static void token_moments(const REAL *x, long n, int ddof, double *mean, double *var) {
    V s0 = {0}, s1 = {0}, first = {0}, second = {0}, first1 = {0}, second1 = {0};
    long c = 0;
    double tail = 0;
    for (; c + 2 * LANES <= n; c += 2 * LANES) {
        s0 += load(x + c, LANES);
        s1 += load(x + c + LANES, LANES);
    }
    for (; c < n; c++) tail += x[c];
    REAL centre = (sum(s0 + s1) + tail) / n;
    double shift = 0, square = 0;
    for (c = 0; c + 2 * LANES <= n; c += 2 * LANES) {
        V a = load(x + c, LANES) - centre, b = load(x + c + LANES, LANES) - centre;
        first += a, second += a * a, first1 += b, second1 += b * b;
    }
    for (; c < n; c++) shift += x[c] - centre, square += (x[c] - centre) * (x[c] - centre);
    shift = (shift + sum(first + first1)) / n;
    square += sum(second + second1);
    *mean = centre + shift;
    *var = fmax(square - n * shift * shift, 0) / (n - ddof > 0 ? n - ddof : 1);
}

/* Intra-token moments of one token; a prefix token is also normalised by them, as in LayerNorm. */
static void forward_token(const Job *job, long row, REAL *y) {
    const Input *in = job->in;
    long c = in->channels;
    const REAL *x = in->x + row * c;
    double *moments = job->moments + 2 * row;
    token_moments(x, c, in->ddof, moments, moments + 1);
    if (row % job->tokens >= in->prefix) return;
    REAL high = moments[0], low = moments[0] - high, scale = 1 / sqrt(moments[1] + in->eps);
    for (long k = 0; k < c; k++) {
        REAL value = (x[k] - high - low) * scale;
        y[row * c + k] =
            (in->weight ? value * in->weight[k] : value) + (in->bias ? in->bias[k] : 0);
    }
}

/* One block of a tile, in place. */
static void forward_block(const Tile *tile, const Scratch *scratch, const Mix *mix, V *x, V weight,
                          V bias) {
    V offset = centre_block(x, scratch->xx, tile->tokens, mix->reference);
    filter(tile, scratch, x);
    const V *m = scratch->moments.first, *s = scratch->moments.second;
    const REAL lm = mix->lm, lv = mix->lv, km = mix->km, kv = mix->kv;
    const double eps = mix->eps, reference = mix->reference;
    for (long t = 0; t < tile->tokens; t++) {
        V variance = s[t] - m[t] * m[t];
        variance = unless_negative(variance, variance);
        REAL mean_ln = tile->moments[2 * t] - reference;
        REAL var_ln = lv * tile->moments[2 * t + 1] + eps;
        V numerator = x[t] - km * m[t] - lm * (mean_ln - offset);
        x[t] = numerator * inverse_root(var_ln + kv * variance) * weight + bias;
    }
}

static void forward_tile(const Input *in, const Tile *tile, const Scratch *scratch, REAL *y) {
    if (!tile->tokens) return; /* a sequence of padding alone */
    Mix mix = mix_of(tile, in);
    read_tile(tile, in->x, in->channels, scratch->x);
    for (int b = 0; b < tile->blocks; b++) {
        long channel = tile->channel + b * LANES;
        int lanes = lanes_of(tile, b);
        V weight = in->weight ? load(in->weight + channel, lanes) : same(1);
        V bias = in->bias ? load(in->bias + channel, lanes) : same(0);
        forward_block(tile, scratch, &mix, scratch->x + b * tile->tokens, weight, bias);
    }
    write_tile(tile, scratch->x, y, in->channels);
}

/* y (samples, tokens, channels); padding is not written. Returns 0 if memory is short. */
static int forward(const Job *job, REAL *y) {
    const Input *in = job->in;
    const Tiling tiling = tiling_of(in, 1);
    int failed = 0;
    OMP(parallel num_threads(in->threads) reduction(| : failed))
    {
        Scratch scratch;
        failed = !scratch_take(&scratch, in, &tiling, 0);
        OMP(for schedule(static))
        for (long row = 0; row < in->samples * job->tokens; row++) forward_token(job, row, y);
        OMP(for schedule(static))
        for (long number = 0; number < tiling.tiles; number++) {
            Tile tile = tile_at(job, &tiling, number);
            if (!failed) forward_tile(in, &tile, &scratch, y);
        }
    }
    return !failed;
}
