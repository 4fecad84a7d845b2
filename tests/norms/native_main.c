/* One call of the C kernel from a file, for processors that no Python runs on here: see
   test_native_arm.py. Standard input: Call, then the arrays of the call in the order in which the
   entries take them; standard output: y and all gradients. */
#include <stdio.h>

#ifdef SINGLE
#include "dtn_f32.c"
#define FORWARD dtn_forward_f32
#define BACKWARD dtn_backward_f32
#else
#include "dtn_f64.c"
#define FORWARD dtn_forward_f64
#define BACKWARD dtn_backward_f64
#endif

static void *take(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory || fread(memory, 1, bytes, stdin) != bytes) exit(3);
    return memory;
}

static void *room(size_t bytes) { return calloc(1, bytes ? bytes : 1); }

int main(void) {
    Call *call = take(sizeof(Call));
    size_t tokens = call->samples * (call->prefix + call->rows * call->cols);
    size_t all = tokens * call->channels * sizeof(REAL), affine = call->channels * sizeof(REAL);
    size_t lambda = call->heads * call->parameter_bytes, place = lambda * call->position_numbers;
    REAL *x = take(all), *weight = take(affine), *bias = take(affine);
    void *mean = take(lambda), *var = take(lambda), *position = take(place);
    REAL *grad_y = take(all), *y = room(all), *grad_x = room(all), *of_weight = room(affine);
    REAL *of_bias = room(affine);
    void *of_mean = room(lambda), *of_var = room(lambda), *of_position = room(place);
    double *moments = room(tokens * 2 * sizeof(double));
    if (FORWARD(call, 1, x, weight, bias, mean, var, position, NULL, moments, y)) return 4;
    if (BACKWARD(call, 1, x, weight, bias, mean, var, position, NULL, moments, grad_y, grad_x,
                 of_weight, of_bias, of_mean, of_var, of_position))
        return 4;
    fwrite(y, 1, all, stdout);
    fwrite(grad_x, 1, all, stdout);
    fwrite(of_weight, 1, affine, stdout);
    fwrite(of_bias, 1, affine, stdout);
    fwrite(of_mean, 1, lambda, stdout);
    fwrite(of_var, 1, lambda, stdout);
    fwrite(of_position, 1, place, stdout);
    return 0;
}
