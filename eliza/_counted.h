/* Counting references, and a list that any thread may push to, without the GIL. */
#ifndef ELIZA_COUNTED_H
#define ELIZA_COUNTED_H

#include <stdint.h>

#if defined(__GNUC__)
#define ELIZA_ADD(p, n) __atomic_add_fetch(p, n, __ATOMIC_ACQ_REL)
#define ELIZA_SWAP(p, to) __atomic_exchange_n(p, to, __ATOMIC_ACQ_REL)
#define ELIZA_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define ELIZA_CAS(p, seen, to) \
    __atomic_compare_exchange_n(p, seen, to, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)
#else
#error "eliza needs a compiler with GNU atomics"
#endif

static inline void eliza_retain(int64_t *count) { ELIZA_ADD(count, 1); }

/* Whether this was the last reference. */
static inline int eliza_release(int64_t *count) { return ELIZA_ADD(count, -1) == 0; }

/* A cell is anything that begins with a pointer to the next one. */
static inline void eliza_push(void **head, void *cell) {
    void *seen = ELIZA_LOAD(head);
    do *(void **)cell = seen; while (!ELIZA_CAS(head, &seen, cell));
}

/* Take the whole list. */
static inline void *eliza_take(void **head) {
    return ELIZA_LOAD(head) ? ELIZA_SWAP(head, (void *)0) : (void *)0;
}

#endif
