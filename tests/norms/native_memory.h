/* Included in front of the C kernel by test_native_compilers.py: allocations are counted, and one
   of them can be made to fail. */
#pragma once

#include <stdlib.h>

/* weak: one variable for all files of the library */
__attribute__((weak)) int allocations_before_failure = -1; /* -1: none fails */
__attribute__((weak)) int allocations_alive = 0;

/* Atomic: threads allocate and free at the same time. */
static inline int may_succeed(void) {
    return __atomic_load_n(&allocations_before_failure, __ATOMIC_SEQ_CST) < 0 ||
           __atomic_fetch_sub(&allocations_before_failure, 1, __ATOMIC_SEQ_CST) > 0;
}

static inline void *counted(void *memory) {
    __atomic_fetch_add(&allocations_alive, memory != NULL, __ATOMIC_SEQ_CST);
    return memory;
}

static inline void released(void *memory) {
    __atomic_fetch_sub(&allocations_alive, memory != NULL, __ATOMIC_SEQ_CST);
    free(memory);
}

#define malloc(bytes) (may_succeed() ? counted(malloc(bytes)) : NULL)
#define calloc(count, bytes) (may_succeed() ? counted(calloc(count, bytes)) : NULL)
#define aligned_alloc(to, bytes) (may_succeed() ? counted(aligned_alloc(to, bytes)) : NULL)
#define free(memory) released(memory)
