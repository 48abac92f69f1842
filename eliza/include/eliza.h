/* Choices as tries of token ids, for C.
 *
 * An `eliza_trie` is an immutable set of choices, each a sequence of token ids. An
 * `eliza_cursor` is one walk through it. At each step `cursor_argmax`, `cursor_sample`,
 * `cursor_mask` or `cursor_bitmask` confine a row of logits to what may follow, and
 * `cursor_accept` goes on. What comes out is always one of the choices.
 *
 * All functions are reached through one struct of pointers, `eliza_api`. How to get it:
 *
 *   from an extension module    eliza_import()            (include Python.h first)
 *   through its address         eliza.c_api().address     (ctypes, cffi, koffi)
 *   from any other program      eliza_get_api()           (eliza_inference.h)
 *
 * THE INTERPRETER. Functions marked [GIL] run Python code: they take the GIL, whether
 * the calling thread has it or not. All others need no Python: they neither take nor
 * need the GIL and never wait for it. Nothing may be called after Py_Finalize.
 *
 * THREADS. A trie may be used by any number of threads. A cursor belongs to one thread
 * at a time; copies of it are independent.
 *
 * OWNERSHIP. Whoever made a trie or a cursor frees it, once, with `trie_free` or
 * `cursor_free`, in any order: a cursor keeps what it needs of its trie. Both take the
 * address of the pointer and set it to NULL, so that a second call does nothing. After
 * that, other copies of the pointer must not be used. All buffers are the caller's, and
 * are borrowed for the call.
 *
 * STATUS. Functions return ELIZA_OK, ELIZA_TOO_SMALL, or an error below zero; after an
 * error, nothing has changed. `err` takes the error's text: at most err_cap bytes with a
 * NUL at their end, UTF-8 that is never cut inside a character, "" after success. With
 * err NULL or err_cap 0 there is no text. No exception and no signal crosses.
 */

#ifndef ELIZA_H
#define ELIZA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is called version 1 only grows: functions are added at the end of `eliza_api`,
 * nothing there changes. */
#define ELIZA_API_VERSION 1u

enum {
  ELIZA_OK = 0,
  ELIZA_FINAL = 1,             /* streams only: nothing follows */
  ELIZA_TOO_SMALL = 2,         /* a buffer of yours; see each function */

  ELIZA_NOT_SUPPORTED = -1,
  ELIZA_INVALID_ARGUMENT = -2, /* also NULL where something must be */
  ELIZA_BUNDLE_ERROR = -3,     /* a file is missing, damaged or not what it claims */
  ELIZA_BACKEND_ERROR = -4,    /* the runtime, or something unforeseen, failed */
  ELIZA_OUT_OF_MEMORY = -5,
  ELIZA_ABI_MISMATCH = -6,
  ELIZA_CANCELLED = -7,
  ELIZA_OFF_PATH = -8,         /* an id of the vocabulary that is not allowed here */
  ELIZA_CONTEXT_OVERFLOW = -9,
  ELIZA_NO_CANDIDATE = -10,    /* all allowed ids are NaN or -inf, or it is done */
  ELIZA_CLOSED = -11,
  ELIZA_TOKEN_LIMIT = -12      /* the limit of ids is reached inside a choice */
};

/* States of a cursor. */
enum {
  ELIZA_ARMED = 0,             /* at the root; it constrains already */
  ELIZA_INSIDE = 1,
  ELIZA_DONE = 2               /* the choice is complete: nothing is allowed */
};

typedef struct eliza_trie eliza_trie;
typedef struct eliza_cursor eliza_cursor;

typedef struct eliza_api {
  uint32_t size;               /* sizeof(eliza_api) in the library */
  uint32_t version;            /* ELIZA_API_VERSION in the library */

  /* ---- tries ---- */

  /* [GIL] Leaf i is tokens[offsets[i]] up to tokens[offsets[i + 1]]; offsets has
   * n_leaves + 1 members. `names` has n_leaves UTF-8 texts, or is NULL. The exit ids
   * say "the choice ends here" where other choices go on; they hold for each leaf, and
   * may also be given to `cursor_new`. Everything is copied. The order of leaves is that
   * of their ids, not yours. */
  int32_t (*trie_from_arrays)(const int32_t *tokens, const int64_t *offsets,
                              size_t n_leaves, const char *const *names,
                              int32_t n_vocab, const int32_t *exits, size_t n_exits,
                              eliza_trie **out, char *err, size_t err_cap);

  /* [GIL] The JSON of a token tree payload, or RTKT, which starts with "RTKT". `path`
   * says which of its choices; NULL where there is one set only. */
  int32_t (*trie_from_payload)(const void *data, size_t size, const char *path,
                               int32_t n_vocab, eliza_trie **out, char *err,
                               size_t err_cap);

  /* [GIL] What Trie.to_bytes gave. */
  int32_t (*trie_from_bytes)(const void *data, size_t size, eliza_trie **out, char *err,
                             size_t err_cap);

  /* [GIL] Map a file that Trie.save wrote. */
  int32_t (*trie_open)(const char *path, eliza_trie **out, char *err, size_t err_cap);

  /* Of *trie, which becomes NULL. NULL in either place is nothing to do. The memory is
   * given back by the next function marked [GIL]. */
  void (*trie_free)(eliza_trie **trie);

  int32_t (*trie_n_leaves)(const eliza_trie *trie, size_t *n, char *err,
                           size_t err_cap);
  int32_t (*trie_n_vocab)(const eliza_trie *trie, int32_t *n, char *err,
                          size_t err_cap);

  /* The name of a leaf with a NUL behind it. *length is always its bytes without the
   * NUL; ELIZA_TOO_SMALL, and "" in the buffer, unless cap is more than that. In a trie
   * without names the name is "". */
  int32_t (*trie_name)(const eliza_trie *trie, int64_t leaf, char *name, size_t cap,
                       size_t *length, char *err, size_t err_cap);

  /* [GIL] The leaf of a name; ELIZA_INVALID_ARGUMENT if there is none. */
  int32_t (*trie_find)(const eliza_trie *trie, const char *name, int64_t *leaf,
                       char *err, size_t err_cap);

  /* ---- cursors: where they are ---- */

  /* [GIL] At the root. `exits`: more exit ids for every leaf. `allow`: the leaves that
   * are permitted, for this cursor and its copies; NULL: all. */
  int32_t (*cursor_new)(const eliza_trie *trie, const int32_t *exits, size_t n_exits,
                        const int64_t *allow, size_t n_allow, eliza_cursor **out,
                        char *err, size_t err_cap);

  int32_t (*cursor_copy)(const eliza_cursor *cursor, eliza_cursor **out, char *err,
                         size_t err_cap);

  /* As trie_free. */
  void (*cursor_free)(eliza_cursor **cursor);

  int32_t (*cursor_state)(const eliza_cursor *cursor, int32_t *state, char *err,
                          size_t err_cap);

  /* The number of the complete choice; -1 while it is not complete. */
  int32_t (*cursor_leaf)(const eliza_cursor *cursor, int64_t *leaf, char *err,
                         size_t err_cap);

  /* How many permitted choices are still possible. */
  int32_t (*cursor_remaining)(const eliza_cursor *cursor, size_t *n, char *err,
                              size_t err_cap);

  /* The ids accepted so far, an exit id included. Buffers: as cursor_allowed. */
  int32_t (*cursor_path)(const eliza_cursor *cursor, int32_t *ids, size_t cap,
                         size_t *n, char *err, size_t err_cap);

  /* The ids that may follow, sorted; none when done. *n is always their number; if it
   * is more than cap, ELIZA_TOO_SMALL, and nothing is written to ids, which may be NULL
   * if cap is 0. */
  int32_t (*cursor_allowed)(eliza_cursor *cursor, int32_t *ids, size_t cap, size_t *n,
                            char *err, size_t err_cap);

  /* The run of ids that can only go one way from here. Buffers: as cursor_allowed. */
  int32_t (*cursor_forced)(const eliza_cursor *cursor, int32_t *ids, size_t cap,
                           size_t *n, char *err, size_t err_cap);

  /* ---- cursors: where they go ---- */

  /* One of the allowed ids. For another one of the vocabulary ELIZA_OFF_PATH, for a
   * number outside of it ELIZA_INVALID_ARGUMENT; the cursor stays. */
  int32_t (*cursor_accept)(eliza_cursor *cursor, int32_t id, char *err, size_t err_cap);

  /* Take back the last n ids. */
  int32_t (*cursor_rollback)(eliza_cursor *cursor, size_t n, char *err, size_t err_cap);

  int32_t (*cursor_reset)(eliza_cursor *cursor, char *err, size_t err_cap);

  /* ---- cursors and rows: n logits, at least as many as the trie's n_vocab ---- */

  /* The allowed id with the highest logit, the lowest of equals. Other logits are not
   * read. NaN and -inf never win. */
  int32_t (*cursor_argmax)(eliza_cursor *cursor, const float *row, size_t n, int32_t *id,
                           char *err, size_t err_cap);

  /* A draw among the allowed ids: temperature (0: argmax), top-k (0: off), top-p (1:
   * off), min-p (0: off), in this order, then `uniform`, your random number in [0, 1).
   */
  int32_t (*cursor_sample)(eliza_cursor *cursor, const float *row, size_t n,
                           double temperature, int64_t top_k, double top_p,
                           double min_p, double uniform, int32_t *id, char *err,
                           size_t err_cap);

  /* -inf at each id that is not allowed, and behind n_vocab. Others keep their bits. */
  int32_t (*cursor_mask)(eliza_cursor *cursor, float *row, size_t n, char *err,
                         size_t err_cap);

  /* Bit i % 32 of word i / 32 stands for id i. All n_words, at least n_vocab / 32
   * rounded up, are written. */
  int32_t (*cursor_bitmask)(eliza_cursor *cursor, uint32_t *words, size_t n_words,
                            char *err, size_t err_cap);

  /* The log probability of each allowed id, aligned with cursor_allowed: within them, or
   * with whole_row within all ids. Buffers: as cursor_allowed. */
  int32_t (*cursor_logprobs)(eliza_cursor *cursor, const float *row, size_t n,
                             int32_t whole_row, double *logprobs, size_t cap,
                             size_t *n_logprobs, char *err, size_t err_cap);
} eliza_api;

/* Whether the library has a function that its version 1 did not begin with. */
#define ELIZA_API_HAS(api, member) \
  ((api)->size >= offsetof(eliza_api, member) + sizeof((api)->member))

#define ELIZA_API_CAPSULE "eliza._capi._API"

#ifdef Py_PYTHON_H
/* With the GIL held: the API, or NULL with an exception set. */
static inline const eliza_api *eliza_import(void) {
  const eliza_api *api;
  PyObject *module = PyImport_ImportModule("eliza._capi");
  if (module == NULL) return NULL;
  Py_DECREF(module);
  api = (const eliza_api *)PyCapsule_Import(ELIZA_API_CAPSULE, 0);
  if (api != NULL && api->version != ELIZA_API_VERSION) {
    PyErr_Format(PyExc_ImportError, "eliza has version %u of its C API, not %u",
                 (unsigned)api->version, ELIZA_API_VERSION);
    return NULL;
  }
  return api;
}
#endif

#ifdef __cplusplus
}
#endif

#endif /* ELIZA_H */
