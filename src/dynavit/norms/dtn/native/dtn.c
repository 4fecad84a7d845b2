/* Dynamic Token Normalization on CPUs, forward and backward, in float and in double.

   The same numbers as the torch version in ../dtn_math.py, which is its oracle and its fallback. What makes it fast:
   tokens are walked in tiles of one sample and one vector of channels that stay in cache, each pass of the separable
   kernel is a register-blocked product over such a tile, kernel entries that do not matter are never visited, and the
   backward pass recomputes the statistics instead of reading them from memory. */

#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define LINES 2 /* lines done at once: 2 * 2 * ROWS accumulators must fit the registers */
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define LINES 1
#else
#define VECTOR_BYTES 16
#define LINES 1
#endif
#define ROWS 4 /* rows of a kernel done at once */

/* Scratch memory that a thread keeps between calls: taking it from the system each time would cost a page fault per 4 KB. */
static void *workspace(int slot, size_t bytes) {
    static _Thread_local void *kept[3];
    static _Thread_local size_t size[3];
    if (size[slot] < bytes) {
        free(kept[slot]);
        kept[slot] = aligned_alloc(VECTOR_BYTES, (bytes + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES);
        size[slot] = bytes;
    }
    return kept[slot];
}

#include "dtn_kernels.h"

#define REAL float
#define NAME(word) word##_f32
#include "dtn_passes.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(word) word##_f64
#include "dtn_passes.h"
