/* Scratch memory that a thread keeps between calls, until it ends: memory fresh from the system
   would cost a page fault for every 4 KB. */
#pragma once

#include <pthread.h>
#include <stdlib.h>

#include "machine.h"

enum Slot { TILE_SLOT, PARTIAL_SLOT, KERNEL_SLOT, SLOTS };

typedef struct {
    void *memory[SLOTS];
    size_t bytes[SLOTS];
} Kept;

static pthread_once_t kept_once = PTHREAD_ONCE_INIT;
static pthread_key_t kept_key;
static int kept_usable;

static void kept_free(void *of_thread) {
    Kept *kept = of_thread;
    for (int slot = 0; slot < SLOTS; slot++) free(kept->memory[slot]);
    free(kept);
}

static void kept_begin(void) { kept_usable = !pthread_key_create(&kept_key, kept_free); }

/* The calling thread's own, or NULL if memory is short. */
static Kept *kept_by_thread(void) {
    pthread_once(&kept_once, kept_begin);
    if (!kept_usable) return NULL;
    Kept *kept = pthread_getspecific(kept_key);
    if (kept) return kept;
    kept = calloc(1, sizeof(Kept));
    if (!kept || !pthread_setspecific(kept_key, kept)) return kept;
    free(kept);
    return NULL;
}

/* At least `bytes`, aligned for vectors, or NULL if memory is short. Nothing that an earlier call
   wrote is kept. */
static void *scratch_memory(enum Slot slot, size_t bytes) {
    Kept *kept = kept_by_thread();
    if (!kept) return NULL;
    if (kept->bytes[slot] < bytes) {
        free(kept->memory[slot]);
        size_t whole_vectors = (bytes + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES;
        kept->memory[slot] = aligned_alloc(VECTOR_BYTES, whole_vectors);
        kept->bytes[slot] = kept->memory[slot] ? bytes : 0;
    }
    return kept->memory[slot];
}
