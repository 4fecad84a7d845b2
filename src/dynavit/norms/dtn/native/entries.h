/* Dynamic Token Normalization on CPUs, forward and backward, for one number type.

   The same numbers as ../math.py, which is its oracle and its fallback. It is fast because
   - tokens are walked in tiles of one sample and a few vectors of channels that stay in cache,
   - each pass of the separable kernel is a register-blocked product over such a tile,
   - kernel entries that do not matter are never visited,
   - the backward pass computes the statistics again instead of reading them from memory.

   From the bottom up: machine.h (processor, compiler), memory.h, simd.h (vectors), band.h
   (positional kernels), blocks.h (their rows in blocks), panel.h (kernels packed for the product,
   and the product), axis.h (a kernel in every form), kernel_gradient.h, call.h (a call from
   Python), job.h (the input of a call), tile.h (a part of its tokens), cells.h (pooling), filter.h
   (the product over a tile), forward.h and backward.h (the passes over all tiles).

   Included by a file that defines REAL, REAL_BYTES and ENTRY. The entries are called through ctypes
   and return 0, or 1 if there was not enough memory. */
#pragma once

#include "backward.h"
#include "forward.h"

static Input input_of(const Call *c, int64_t threads, const REAL *x, const REAL *weight,
                      const REAL *bias, const Mixture *mixture, const int64_t *extents) {
    return (Input){c->samples, c->prefix, c->rows, c->cols,       c->channels,  c->heads,
                   c->pool,    c->radius, c->ddof, threads,       c->eps,       c->cut,
                   x,          weight,    bias,    mixture->mean, mixture->var, mixture->position,
                   extents};
}

/* y is written, and moments (samples, tokens, 2) where somebody wants them: else NULL. */
int ENTRY(dtn_forward)(const Call *call, int64_t threads, const REAL *x, const REAL *weight,
                       const REAL *bias, const void *mean, const void *var, const void *position,
                       const int64_t *extents, double *moments, REAL *y) {
    Mixture mixture;
    Job job = {0};
    long tokens = call->samples * (call->prefix + call->rows * call->cols);
    double *own = moments ? NULL : malloc(2 * tokens * sizeof(double));
    if (!moments) moments = own;
    int done = mixture_make(&mixture, call->heads) && moments;
    if (done) {
        read_mixture(call, mean, var, position, &mixture);
        Input in = input_of(call, threads, x, weight, bias, &mixture, extents);
        done = job_begin(&job, &in, moments, 0) && forward(&job, y);
        job_end(&job);
    }
    free(own);
    mixture_free(&mixture);
    return !done;
}

static void write_reals(const double *from, long count, REAL *to) {
    for (long k = 0; to && k < count; k++) to[k] = from[k];
}

/* All gradients are written; those of parameters may be NULL. */
int ENTRY(dtn_backward)(const Call *call, int64_t threads, const REAL *x, const REAL *weight,
                        const REAL *bias, const void *mean, const void *var, const void *position,
                        const int64_t *extents, double *moments, const REAL *grad_y, REAL *grad_x,
                        REAL *grad_weight, REAL *grad_bias, void *grad_mean, void *grad_var,
                        void *grad_position) {
    Mixture mixture, slope;
    Job job = {0};
    long channels = call->channels;
    double *affine = calloc(2 * channels, sizeof(double));
    int done = mixture_make(&mixture, call->heads) & mixture_make(&slope, call->heads);
    done = done && affine;
    if (done) {
        read_mixture(call, mean, var, position, &mixture);
        Input in = input_of(call, threads, x, weight, bias, &mixture, extents);
        Gradients grad = {grad_x, affine, affine + channels, slope.mean, slope.var, slope.position};
        done = job_begin(&job, &in, moments, 1) && backward(&job, grad_y, &grad);
        job_end(&job);
        write_reals(affine, channels, grad_weight);
        write_reals(affine + channels, channels, grad_bias);
        write_lambdas(call, call->mean_kind, mixture.mean, slope.mean, grad_mean);
        write_lambdas(call, call->var_kind, mixture.var, slope.var, grad_var);
        write_positions(call, slope.position, grad_position);
    }
    free(affine);
    mixture_free(&mixture);
    mixture_free(&slope);
    return !done;
}
