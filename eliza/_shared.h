/* Counted references to a Python object, which need no GIL to be given up.
 *
 * Whoever lets go of the last one cannot drop the object, as that needs the GIL: it is
 * left in a list, and the next call that has the GIL drops what is there. Pushing and
 * taking the whole list are one atomic exchange each: there is no lock that a forked
 * child would wait for.
 */
#ifndef ELIZA_SHARED_H
#define ELIZA_SHARED_H

#include <stdint.h>
#include <stdlib.h>

typedef struct shared_t {
  int64_t refs;
  void *object;          /* a PyObject, owned */
  struct shared_t *next; /* in the list of those that are let go */
} shared_t;

static inline shared_t *shared_make(void *object) {
  shared_t *shared = (shared_t *)malloc(sizeof *shared);
  if (shared != NULL) {
    shared->refs = 1;
    shared->object = object;
    shared->next = NULL;
  }
  return shared;
}

static inline void shared_retain(shared_t *shared) {
  __atomic_add_fetch(&shared->refs, 1, __ATOMIC_RELAXED);
}

/* Give up one reference; the last one puts it into the list. */
static inline void shared_release(shared_t *shared, shared_t **list) {
  if (__atomic_sub_fetch(&shared->refs, 1, __ATOMIC_ACQ_REL) != 0) return;
  shared->next = __atomic_load_n(list, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(list, &shared->next, shared, 1, __ATOMIC_RELEASE,
                                      __ATOMIC_RELAXED)) {
  }
}

static inline shared_t *shared_take(shared_t **list) {
  return __atomic_exchange_n(list, (shared_t *)NULL, __ATOMIC_ACQ_REL);
}

#endif /* ELIZA_SHARED_H */
