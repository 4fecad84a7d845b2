/* Dynamic Token Normalization on CPUs, forward and backward, for one number type.

   The same numbers as ../math.py, which is its oracle and its fallback. It is fast because
   - tokens are walked in tiles of one sample and a few vectors of channels that stay in cache,
   - each pass of the separable kernel is a register-blocked product over such a tile,
   - kernel entries that do not matter are never visited,
   - the backward pass computes the statistics again instead of reading them from memory.

   From the bottom up: machine.h (processor, compiler), memory.h, simd.h (vectors), band.h
   (positional kernels), panel.h (kernels packed for the product, and the product),
   kernel_gradient.h, job.h (the input of a call), tile.h (a part of its tokens), filter.h (the
   product over a tile), forward.h and backward.h (the passes over all tiles).

   Included by a file that defines REAL, REAL_BYTES and ENTRY. The entries are called through ctypes
   and return 0, or 1 if there was not enough memory. */
#pragma once

#include "backward.h"
#include "forward.h"

/* moments and y are written. */
int ENTRY(dtn_forward)(const Input *in, double *moments, REAL *y) {
    Job job;
    int done = job_begin(&job, in, moments, 0) && forward(&job, y);
    job_end(&job);
    return !done;
}

/* grad_x is written, the other gradients are added to. */
int ENTRY(dtn_backward)(const Input *in, double *moments, const REAL *grad_y, REAL *grad_x,
                        double *grad_weight, double *grad_bias, double *grad_lam_mean,
                        double *grad_lam_var, double *grad_position) {
    Job job;
    Gradients grad = {grad_x, grad_weight, grad_bias, grad_lam_mean, grad_lam_var, grad_position};
    int done = job_begin(&job, in, moments, 1) && backward(&job, grad_y, &grad);
    job_end(&job);
    return !done;
}
