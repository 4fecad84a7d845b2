/* Positional kernels along one axis, in double for every number type of the tokens:
   P[i][j] = softmax over j of square (j-i)^2 + slope (j-i), |j-i| <= radius; the last source may
   count less than the others. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double square, slope; /* factors of d^2 and of d = j - i */
    double cut;           /* weights below this share of their row's largest become 0 */
    double last;          /* share of the last source: of its tokens that are there */
    int radius;           /* -1: no limit */
} Score;

#define SHORTEST_RUN 8 /* that is worth a way of its own */

/* Rows from <= i < to that hold the same weights at the same offsets. */
typedef struct {
    int from, to;
} Run;

typedef struct {
    int n, width, reach; /* rows; room per row; the largest offset */
    int *first, *count;  /* P[i][first[i] + k] = band_row(i)[k] for k < count[i]; all else is 0 */
    int *place;          /* of each row in p: rows away from the borders share one */
    double *p;           /* (places, width) */
    Run run;             /* around the middle row; empty if it is short */
} Band;

static inline double score_at(const Score *score, int d) {
    return (score->square * d + score->slope) * d;
}

static inline int band_width(int n, int radius) {
    return radius < 0 || 2 * radius + 1 > n ? n : 2 * radius + 1;
}

static inline double *band_row(const Band *band, int i) {
    return band->p + (size_t)band->place[i] * band->width;
}

static inline double band_at(const Band *band, int i, int j) {
    int k = j - band->first[i];
    return k >= 0 && k < band->count[i] ? band_row(band, i)[k] : 0;
}

/* Numbers in a gradient of P: one for each entry of (rows, width). */
static inline long band_size(const Band *band) { return (long)band->n * band->width; }

/* exp(score - highest) by offset d = -reach..reach, so that rows need no exponentials of their own.
   Only for scores that lie close enough together that none underflows. */
typedef struct {
    int reach, usable;
    double highest, *weight; /* weight[d + reach] */
    double least;            /* exponent of the cut */
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
    table->least = log(score->cut);
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
        /* The stored score: computed again it could be fused and rounded differently from `top`.
           The row's largest weight is 1, so most of a long row needs no exponential. */
        double below = p[d - from] - top, weight = 0;
        if (!(below < table->least))
            weight = table->usable ? table->weight[d + table->reach] * scale : exp(below);
        if (i + d == band->n - 1) weight *= score->last;
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

static int band_same(const Band *band, int i, int j) {
    if (band->place[i] == band->place[j]) return 1;
    return band->first[i] - i == band->first[j] - j && band->count[i] == band->count[j] &&
           !memcmp(band_row(band, i), band_row(band, j), band->count[i] * sizeof(double));
}

static inline int in_run(const Band *band, int i) {
    return i >= band->run.from && i < band->run.to;
}

static Run band_run(const Band *band) {
    int middle = band->n / 2, beside = band->n - band->reach - 1;
    Run run = {middle, middle + 1};
    if (band->reach < beside) run = (Run){band->reach, beside}; /* share a place */
    while (run.from > 0 && band_same(band, run.from - 1, middle)) run.from--;
    while (run.to < band->n && band_same(band, run.to, middle)) run.to++;
    return run.to - run.from < SHORTEST_RUN ? (Run){0, 0} : run;
}

/* Rows of the transposed band that hold the same weights: those that only rows of the run see. May
   be empty, with to <= from. */
static Run band_run_transposed(const Band *band) {
    Run run = band->run;
    if (run.from == run.to) return run;
    int low = band->first[run.from] - run.from, high = low + band->count[run.from] - 1;
    Run columns = {run.from + high, run.to + low};
    for (int i = 0; i < run.from; i++) {
        int end = band->first[i] + band->count[i];
        if (end > columns.from) columns.from = end;
    }
    for (int i = run.to; i < band->n; i++)
        if (band->first[i] < columns.to) columns.to = band->first[i];
    return columns;
}

/* Returns 0 if memory is short; the band must be freed in either case. */
static int band_make(Band *band, const Score *score, int n) {
    band->n = n;
    band->width = band_width(n, score->radius);
    /* One for each row at a border, one for all others; the last of these may see a cut source. */
    int places = band->width < n ? band->width + (score->last != 1) : n;
    size_t numbers = (size_t)places * band->width;
    band->p = malloc(numbers * sizeof(double) + 3 * n * sizeof(int)); /* in one piece */
    ExpTable table;
    if (!band->p || !exp_table_make(&table, score, n)) return 0;
    band->first = (int *)(band->p + numbers);
    band->count = band->first + n;
    band->place = band->count + n;
    int reach = band->reach = table.reach;
    for (int i = 0, next = 0, known_from = 1, known_to = 0; i < n; i++) {
        int from = i < reach ? -i : -reach, to = n - 1 - i < reach ? n - 1 - i : reach;
        int known = from == known_from && to == known_to; /* as all rows away from the borders */
        known = known && (i + to < n - 1 || score->last == 1);
        band->place[i] = known ? band->place[i - 1] : next++;
        if (known) {
            band->first[i] = band->first[i - 1] + 1;
            band->count[i] = band->count[i - 1];
            continue;
        }
        known_from = from, known_to = to;
        band_fill_row(band, i, from, to, score, &table);
    }
    free(table.weight);
    band->run = band_run(band);
    return 1;
}

/* Adds the gradients of `square` and `slope`, given that of P's entries (rows, width); that of the
   run's first row is the sum over all rows of the run. */
static void band_backward(const Band *band, const double *grad_p, double *grad_square,
                          double *grad_slope) {
    for (int i = 0; i < band->n; i = in_run(band, i) ? band->run.to : i + 1) {
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
