/* One call of the layer: its input and its kernels. */
#pragma once

#include "axis.h"
#include "call.h"

/* The input of a call. Arrays are contiguous and row-major. */
typedef struct {
    long samples, prefix, rows, cols, channels, heads;
    long pool;   /* side of the cells whose averages are filtered; 1: the tokens themselves */
    long radius; /* weights beyond this offset are 0; -1: no limit */
    long ddof;   /* the intra-token variance is divided by channels - ddof */
    long threads;
    double eps, cut;
    const REAL *x;                    /* (samples, prefix + rows * cols, channels) */
    const REAL *weight, *bias;        /* (channels) or NULL */
    const double *lam_mean, *lam_var; /* (heads) */
    const double *position;           /* (heads, 3): a0, a1 of the columns, a2 of the rows */
    const int64_t *extents;           /* (samples, 2) real rows and columns; NULL: all of them */
} Input;

/* The real tokens of a sample: a rectangle in the top-left corner of the grid. */
typedef struct {
    long rows, cols;
} Extent;

static inline Extent extent_of(const Input *in, long sample) {
    if (!in->extents) return (Extent){in->rows, in->cols};
    return (Extent){in->extents[2 * sample], in->extents[2 * sample + 1]};
}

/* Cells along an axis, and the share of the last one's tokens that are real. */
typedef struct {
    long count;
    double last;
} Cells;

static inline Cells cells_of(long tokens, long pool) {
    long count = (tokens + pool - 1) / pool;
    return (Cells){count, (double)(tokens - (count - 1) * pool) / pool};
}

/* `vertical` kernels run over rows, `horizontal` ones over columns. */
typedef struct {
    const Input *in;
    long tokens;                 /* of a sample, prefix included */
    Axis *vertical, *horizontal; /* (heads), or (samples, heads) with extents */
    double *moments;             /* (samples, tokens, 2): intra-token mean and variance */
} Job;

static long axes_of(const Input *in) { return in->heads * (in->extents ? in->samples : 1); }

static void job_end(Job *job) {
    for (long k = 0; k < axes_of(job->in); k++) {
        if (job->vertical) axis_free(job->vertical + k);
        if (job->horizontal) axis_free(job->horizontal + k);
    }
    free(job->vertical);
    free(job->horizontal);
}

/* Returns 0 if memory is short; `job_end` frees in either case. */
static int job_begin(Job *job, const Input *in, double *moments, int backward) {
    long axes = axes_of(in);
    *job = (Job){.in = in, .tokens = in->prefix + in->rows * in->cols, .moments = moments};
    job->vertical = calloc(axes, sizeof(Axis));
    job->horizontal = calloc(axes, sizeof(Axis));
    if (!job->vertical || !job->horizontal) return 0;
    int failed = 0;
    OMP(parallel for num_threads(in->threads) schedule(static) reduction(|:failed) if (in->extents))
    for (long k = 0; k < axes; k++) {
        const double *a = in->position + 3 * (k % in->heads);
        Extent real = extent_of(in, k / in->heads);
        Cells down = cells_of(real.rows, in->pool), across = cells_of(real.cols, in->pool);
        Score vertical = {a[0], a[2], in->cut, down.last, in->radius};
        Score horizontal = {a[0], a[1], in->cut, across.last, in->radius};
        if (!real.rows) continue; /* padding alone */
        failed |= !axis_make(job->vertical + k, &vertical, down.count, backward);
        if (in->cols > 1)
            failed |= !axis_make(job->horizontal + k, &horizontal, across.count, backward);
    }
    return !failed;
}
