/* Positional kernels along one axis, in double for every number type of the tokens:
   P[i][j] = softmax over j of square (j-i)^2 + slope (j-i), |j-i| <= radius. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double square, slope; /* factors of d^2 and of d = j - i */
    double cut;           /* weights below this share of their row's largest become 0 */
    int radius;           /* -1: no limit */
} Score;

typedef struct {
    int n, width;       /* rows; room per row */
    int *first, *count; /* P[i][first[i] + k] = p[i * width + k] for k < count[i]; all else is 0 */
    double *p;
} Band;

static inline double score_at(const Score *score, int d) {
    return (score->square * d + score->slope) * d;
}

static inline int band_width(int n, int radius) {
    return radius < 0 || 2 * radius + 1 > n ? n : 2 * radius + 1;
}

static inline double *band_row(const Band *band, int i) {
    return band->p + (size_t)i * band->width;
}

static inline long band_size(const Band *band) { return (long)band->n * band->width; }

/* exp(score - highest) by offset d = -reach..reach, so that rows need no exponentials of their own.
   Only for scores that lie close enough together that none underflows. */
typedef struct {
    int reach, usable;
    double highest, *weight; /* weight[d + reach] */
} ExpTable;

static int exp_table_make(ExpTable *table, const Score *score, int n) {
    int reach = score->radius < 0 || score->radius > n - 1 ? n - 1 : score->radius;
    double highest = -INFINITY, lowest = INFINITY;
    for (int d = -reach; d <= reach; d++) {
        double here = score_at(score, d); /* not fmax: gcc 12 for ARM fails on such a loop */
        if (here > highest) highest = here;
        if (here < lowest) lowest = here;
    }
    *table = (ExpTable){.reach = reach, .usable = highest - lowest < 600, .highest = highest};
    table->weight = malloc((2 * reach + 1) * sizeof(double));
    if (!table->weight) return 0;
    for (int d = -reach; table->usable && d <= reach; d++)
        table->weight[d + reach] = exp(score_at(score, d) - highest);
    return 1;
}

/* Row i, whose sources lie at offsets from..to. */
static void band_fill_row(Band *band, int i, int from, int to, const Score *score,
                          const ExpTable *table) {
    double *p = band_row(band, i), top = -INFINITY, sum = 0;
    for (int d = from; d <= to; d++) {
        p[d - from] = score_at(score, d);
        if (p[d - from] > top) top = p[d - from];
    }
    double scale = table->usable ? exp(table->highest - top) : 0;
    int low = to + 1, high = from - 1; /* first and last offset whose weight is not cut */
    for (int d = from; d <= to; d++) {
        /* The stored score: computed again it could be fused and rounded differently from `top`. */
        double weight =
            table->usable ? table->weight[d + table->reach] * scale : exp(p[d - from] - top);
        if (weight < score->cut) weight = 0; /* the row's largest weight is 1 */
        p[d - from] = weight;
        sum += weight;
        if (weight > 0) {
            if (low > to) low = d;
            high = d;
        }
    }
    if (high < low) low = high = 0; /* only with NaN parameters: they pass through to the output */
    memmove(p, p + (low - from), (high - low + 1) * sizeof(double));
    for (int k = 0; k <= high - low; k++) p[k] /= sum;
    band->first[i] = i + low;
    band->count[i] = high - low + 1;
}

static void band_free(Band *band) { free(band->p); }

/* Returns 0 if memory is short; the band must be freed in either case. */
static int band_make(Band *band, const Score *score, int n) {
    band->n = n;
    band->width = band_width(n, score->radius);
    band->p = malloc(band_size(band) * sizeof(double) + 2 * n * sizeof(int)); /* in one piece */
    ExpTable table;
    if (!band->p || !exp_table_make(&table, score, n)) return 0;
    band->first = (int *)(band->p + band_size(band));
    band->count = band->first + n;
    int reach = table.reach;
    for (int i = 0, known_from = 1, known_to = 0; i < n; i++) {
        int from = i < reach ? -i : -reach, to = n - 1 - i < reach ? n - 1 - i : reach;
        if (from == known_from && to == known_to) { /* rows away from the borders are the same */
            memcpy(band_row(band, i), band_row(band, i - 1), band->width * sizeof(double));
            band->first[i] = band->first[i - 1] + 1;
            band->count[i] = band->count[i - 1];
            continue;
        }
        known_from = from, known_to = to;
        band_fill_row(band, i, from, to, score, &table);
    }
    free(table.weight);
    return 1;
}

/* Rows from <= i < to that hold the same weights at the same offsets. */
typedef struct {
    int from, to;
} Run;

static int band_same(const Band *band, int i, int j) {
    return band->first[i] - i == band->first[j] - j && band->count[i] == band->count[j] &&
           !memcmp(band_row(band, i), band_row(band, j), band->count[i] * sizeof(double));
}

/* The run around the middle row, cut to whole blocks, of which block q begins at row[q]; empty if
   to <= from. */
static Run band_run(const Band *band, const int *row, int blocks) {
    int middle = band->n / 2, from = middle, to = middle + 1, first = 0, last = blocks;
    while (from > 0 && band_same(band, from - 1, middle)) from--;
    while (to < band->n && band_same(band, to, middle)) to++;
    while (first < blocks && row[first] < from) first++;
    while (last > 0 && row[last] > to) last--;
    return (Run){row[first], row[last]};
}

static inline int in_run(Run run, int i) { return i >= run.from && i < run.to; }

/* The next row with an entry of its own in a gradient of P: the first row of a run stands for all
   of them. */
static inline int next_row(int i, Run run) {
    return i == run.from && run.to > run.from ? run.to : i + 1;
}

/* Adds the gradients of `square` and `slope`, given that of P's entries (laid out as band->p). */
static void band_backward(const Band *band, const double *grad_p, Run run, double *grad_square,
                          double *grad_slope) {
    for (int i = 0; i < band->n; i = next_row(i, run)) {
        const double *p = band_row(band, i), *g = grad_p + (size_t)i * band->width;
        double inner = 0;
        for (int k = 0; k < band->count[i]; k++) inner += p[k] * g[k];
        for (int k = 0; k < band->count[i]; k++) {
            double d = band->first[i] + k - i, grad_score = p[k] * (g[k] - inner);
            *grad_square += grad_score * d * d;
            *grad_slope += grad_score * d;
        }
    }
}
