/* Vectors of REAL, in the vector extension that gcc and clang share. */
#pragma once

#include <math.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "machine.h"

#define LANES (VECTOR_BYTES / REAL_BYTES)

typedef REAL V __attribute__((vector_size(VECTOR_BYTES)));
typedef __typeof__((V){0} < (V){0}) Mask; /* whole numbers of REAL's size */

#if LANES == 2
#define EVEN_LANES 0, 2
#define ODD_LANES 1, 3
#elif LANES == 4
#define EVEN_LANES 0, 2, 4, 6
#define ODD_LANES 1, 3, 5, 7
#elif LANES == 8
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14
#define ODD_LANES 1, 3, 5, 7, 9, 11, 13, 15
#elif LANES == 16
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD_LANES 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#endif

INLINE V load(const REAL *from, int lanes) {
    V v = {0};
    if (lanes == LANES)
        memcpy(&v, from, sizeof v);
    else
        memcpy(&v, from, lanes * sizeof(REAL));
    return v;
}

INLINE void store(REAL *to, V v, int lanes) {
    if (lanes == LANES)
        memcpy(to, &v, sizeof v);
    else
        memcpy(to, &v, lanes * sizeof(REAL));
}

INLINE V same(REAL x) { return x - (V){0}; } /* not 0 + x, which makes 0 of -0: an addition */

/* 1 / sqrt(v): an estimate and Newton steps cost a fifth of a root and a division. The estimates
   have 14 bits (AVX-512), 12 (AVX) and 8 (ARM); each step doubles them. */
INLINE V newton(V v, V guess) { return guess * ((REAL)1.5 - v * (REAL)0.5 * guess * guess); }

#if REAL_BYTES == 4 && defined(__AVX512F__)
INLINE V inverse_root(V v) { return newton(v, (V)_mm512_rsqrt14_ps((__m512)v)); }
#elif REAL_BYTES == 4 && defined(__AVX__)
INLINE V inverse_root(V v) { return newton(v, (V)_mm256_rsqrt_ps((__m256)v)); }
#elif REAL_BYTES == 4 && defined(__aarch64__)
INLINE V inverse_root(V v) {
    return newton(v, newton(v, newton(v, (V)vrsqrteq_f32((float32x4_t)v))));
}
#else
INLINE V inverse_root(V v) {
    REAL lanes[LANES];
    memcpy(lanes, &v, sizeof v);
    for (int l = 0; l < LANES; l++)
        lanes[l] = 1 / (REAL_BYTES == 4 ? sqrtf(lanes[l]) : sqrt(lanes[l]));
    memcpy(&v, lanes, sizeof v);
    return v;
}
#endif

/* v where `test` is not negative, else 0. A NaN in `test` keeps v: bad input stays visible. */
INLINE V unless_negative(V test, V v) {
    Mask negative = test < (V){0};
    return (V)((Mask)v & ~negative);
}

/* Sums of neighbouring lanes, of a in the lower half and of b in the upper half. */
INLINE V pair_sums(V a, V b) { return SHUFFLE(a, b, EVEN_LANES) + SHUFFLE(a, b, ODD_LANES); }

/* Sums over the lanes of `count` vectors (a power of two, at most LANES) at once: each step adds
   pairs of lanes and packs two vectors into one, which costs far less than `count` single sums.
   Lanes 0..count-1 of the result hold the sums; v is overwritten. */
INLINE V sums(V *v, const int count) {
    int left = count, width = LANES;
    UNROLL
    for (; left > 1; left /= 2, width /= 2) {
        UNROLL
        for (int k = 0; k < left / 2; k++) v[k] = pair_sums(v[2 * k], v[2 * k + 1]);
    }
    for (; width > 1; width /= 2) v[0] = pair_sums(v[0], v[0]);
    return v[0];
}

INLINE REAL sum(V v) { return sums(&v, 1)[0]; }

/* Sums over the lanes of `count` vectors, a power of two; v is overwritten. */
INLINE void lane_sums(V *v, const int count, REAL *total) {
    const int at_once = LANES < count ? LANES : count;
    UNROLL
    for (int k = 0; k < count; k += at_once) store(total + k, sums(v + k, at_once), at_once);
}
