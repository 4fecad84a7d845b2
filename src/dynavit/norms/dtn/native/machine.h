/* Everything that depends on the processor or on the compiler. */
#pragma once

/* ---- the processor ---- */

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define VECTOR_REGISTERS 32
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define VECTOR_REGISTERS 16
#elif defined(__aarch64__)
#define VECTOR_BYTES 16
#define VECTOR_REGISTERS 32
#else
#define VECTOR_BYTES 16
#define VECTOR_REGISTERS 16
#endif

/* Register blocking. A pass keeps 2 * LINES * rows accumulators for up to ROWS rows of a kernel,
   two inputs for each line and one weight; in a run of equal rows 2 * RUN_LINES * RUN_ROWS, two
   inputs and RUN_ROWS weights; the gradient of a kernel OUTER_ROWS * OUTER_COLS accumulators, a row
   of each factor and one vector more. */
#define ROWS 6
#if VECTOR_REGISTERS == 32
#define LINES 2
#define RUN_ROWS 2
#define RUN_LINES 5
#define OUTER_ROWS 4
#define OUTER_COLS 6
#else
#define LINES 1
#define RUN_ROWS 2
#define RUN_LINES 3
#define OUTER_ROWS 3
#define OUTER_COLS 3
#endif
#define OFFSETS 8           /* offsets at once in the gradient of a run of rows */
#define TOKENS_AT_ONCE 4    /* in sums over channels; a power of two */
#define CACHE_BYTES 2500000 /* of the second-level cache, for a tile and its scratch memory */
#define LINE_BYTES 64       /* of the cache */
#define UNITS_OF_THREAD 4   /* units of work for each thread, if there are so many tiles */
#define MOST_SAMPLES 16     /* of a unit */
#define PREFETCH_TOKENS 16  /* distance at which tokens are fetched ahead */

/* ---- the compiler ---- */

#define INLINE static inline __attribute__((always_inline))
#define PRAGMA(...) _Pragma(#__VA_ARGS__)

/* In front of a loop of constant length. clang unrolls such loops by itself. */
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL PRAGMA(GCC unroll 16)
#endif

/* Keeps a vector in its register: gcc would rather load it again for every product. */
#if defined(__x86_64__)
#define KEEP(vector) __asm__("" : "+v"(vector))
#elif defined(__aarch64__)
#define KEEP(vector) __asm__("" : "+w"(vector))
#else
#define KEEP(vector)
#endif

/* Without OpenMP the loops run on one thread. */
#if defined(_OPENMP)
#define OMP(...) PRAGMA(omp __VA_ARGS__)
#else
#define OMP(...)
#endif

/* Lanes of two vectors, chosen by constant numbers: gcc has clang's builtin since version 12. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (Mask){__VA_ARGS__})
#endif
