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

#define ROWS 4                                /* rows of a kernel that a pass takes at once */
#define LINES (VECTOR_REGISTERS / (4 * ROWS)) /* lines at once: 2 * LINES * ROWS accumulators */
#define OFFSETS 8                             /* offsets at once in the gradient of a run of rows */
#define CACHE_BYTES 2000000 /* of the second-level cache, for a tile and its scratch memory */
#define PREFETCH_TOKENS 16  /* distance at which tokens are fetched ahead */

/* ---- the compiler ---- */

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define PRAGMA(...) _Pragma(#__VA_ARGS__)

/* In front of a loop of constant length. clang unrolls such loops by itself. */
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL PRAGMA(GCC unroll 16)
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
