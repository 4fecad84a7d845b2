/* One call from Python, and its parameters in double. They come as the layer has them, in single or
   double precision, and their gradients go back in the same form: nothing has to be converted by
   tensor operations, which would take longer than the work on a small grid. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

enum Kind { SHARE, LOGIT, FIXED }; /* of a number that stands for lambda */

/* Written by kernel.py, which lists the same fields in the same order. */
typedef struct {
    int64_t samples, prefix, rows, cols, channels, heads;
    int64_t pool;             /* side of the cells whose averages are filtered */
    int64_t radius;           /* weights beyond this offset are 0; -1: no limit */
    int64_t ddof;             /* the intra-token variance is divided by channels - ddof */
    int64_t position_numbers; /* of a head: 3, or 2 for sequences, which run along the rows */
    int64_t parameter_bytes;  /* of a number of lambda and position: 4 or 8 */
    int64_t mean_kind, var_kind;
    double fixed_mean, fixed_var; /* lambda, if its kind is FIXED */
    double eps, cut;
} Call;

/* Parameters or their gradients: (heads), (heads), (heads, 3). */
typedef struct {
    double *mean, *var, *position;
} Mixture;

/* All zero. Returns 0 if memory is short; to be freed by `mixture_free` in either case. */
static int mixture_make(Mixture *mixture, long heads) {
    double *memory = calloc(5 * heads, sizeof(double));
    *mixture = (Mixture){memory, memory + heads, memory + 2 * heads};
    return memory != NULL;
}

static void mixture_free(Mixture *mixture) { free(mixture->mean); }

static double read_number(const Call *call, const void *from, long k) {
    return call->parameter_bytes == 4 ? ((const float *)from)[k] : ((const double *)from)[k];
}

static void write_number(const Call *call, void *to, long k, double number) {
    if (call->parameter_bytes == 4)
        ((float *)to)[k] = number;
    else
        ((double *)to)[k] = number;
}

/* A share beyond an end of [0, 1] counts as that end; NaN stays visible. */
static double lambda_of(int64_t kind, double fixed, double number) {
    if (kind == FIXED) return fixed;
    if (kind == LOGIT) return 1 / (1 + exp(-number));
    return number < 0 ? 0 : number > 1 ? 1 : number;
}

/* Column of `position` (heads, 3) that number k of a head's own stands for. */
static int position_column(const Call *call, int k) {
    return call->position_numbers == 2 ? 2 * k : k;
}

/* Without `position` it is 0: all offsets weigh the same. */
static void read_mixture(const Call *call, const void *mean, const void *var, const void *position,
                         Mixture *to) {
    for (long h = 0; h < call->heads; h++) {
        double number = mean ? read_number(call, mean, h) : 0;
        to->mean[h] = lambda_of(call->mean_kind, call->fixed_mean, number);
        number = var ? read_number(call, var, h) : 0;
        to->var[h] = lambda_of(call->var_kind, call->fixed_var, number);
        for (int k = 0; position && k < call->position_numbers; k++)
            to->position[3 * h + position_column(call, k)] =
                read_number(call, position, call->position_numbers * h + k);
    }
}

/* Gradients of the numbers that stand for lambda, given those of lambda; NULL is not wanted. */
static void write_lambdas(const Call *call, int64_t kind, const double *lambda, const double *grad,
                          void *to) {
    for (long h = 0; to && h < call->heads; h++)
        write_number(call, to, h, kind == LOGIT ? grad[h] * lambda[h] * (1 - lambda[h]) : grad[h]);
}

static void write_positions(const Call *call, const double *grad, void *to) {
    for (long h = 0; to && h < call->heads; h++)
        for (int k = 0; k < call->position_numbers; k++)
            write_number(call, to, call->position_numbers * h + k,
                         grad[3 * h + position_column(call, k)]);
}
