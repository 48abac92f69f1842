/* One generation as a stream, for C: load a bundle, open, prefill, next, close.
 *
 * The functions are symbols of the library whose path `eliza.abi_library()` returns. It
 * needs no Python to be loaded, linked or called: it finds the interpreter at run time.
 *
 *   In a process that Python runs in (ctypes, cffi, an extension) there is nothing to
 *   do. Any other process (C, Node, ...) calls `eliza_abi_init` once, first.
 *
 * Every call takes the GIL for itself, from any thread, and lets go of it while the
 * model computes. Calls on one model queue; `cancel` never waits for them. Nothing may
 * be called after Py_Finalize, and a process that forks must load its models after that.
 *
 * OWNERSHIP. What `create` gave, `destroy` frees, with all its streams; what `open`
 * gave, `close` frees. A handle is a number in the shape of a pointer: never used twice,
 * so that a use after the end is ELIZA_CLOSED, and a second end is nothing. All buffers
 * are the caller's, and are borrowed for the call; nothing is to be freed but handles.
 *
 * STATUS, and texts in `err`: as in eliza.h. After an error the stream is as before, and
 * the call may be repeated; ids that were chosen are never lost.
 */

#ifndef ELIZA_INFERENCE_H
#define ELIZA_INFERENCE_H

#include "eliza.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers up to 13 are those of another library with the same names and other
 * parameters. */
#define ELIZA_INFERENCE_ABI_VERSION 100

typedef struct EliInferenceContext EliInferenceContext;
typedef struct EliLlmStream EliLlmStream;

/* How a stream generates. Zero everywhere is a good default: greedy, without a limit.
 * It only grows: new members are added at the end, and mean nothing when they are 0. */
typedef struct eliza_llm_stream_config {
  int32_t max_tokens;           /* ids after a prompt; 0 or less: no limit */
  float temperature;            /* 0 or less: the likeliest */
  float top_p;                  /* 0, or 1 and more: off */
  int32_t top_k;                /* 0 or less: off */
  float repeat_penalty;         /* 0 or 1: off; over the last 64 ids */
  int32_t slot_id;              /* has no effect: each stream has a slot of its own */
  const char *prompt_cache_key; /* has no effect */
  int32_t draft_min;            /* has no effect: how many are guessed follows from how
                                   often guesses held */
  int32_t draft_max;            /* guess up to so many ids ahead; 0 or less: none, or 16
                                   with a drafter */
  const char *mtp_drafter_path; /* the model that guesses; NULL: the text so far */
  const char *gbnf_grammar;     /* must be NULL or "": ELIZA_NOT_SUPPORTED otherwise */
  int32_t disable_thinking;     /* has no effect */
  int32_t n_gpu_layers;         /* of the model: 0 CPU, -1 all */
  const char *cache_type_k;     /* of the model: "f16", "q8_0", ...; NULL: default */
  const char *cache_type_v;     /* the same as cache_type_k */
  int32_t context_size;         /* of the model; 0: default */
  int32_t reserved;             /* 0 */
  uint64_t seed;                /* of draws; 0: another one each time */
  float min_p;                  /* 0: off */
} eliza_llm_stream_config_t;

/* ---- the library ---- */

/* "100" */
const char *eliza_inference_abi_version(void);

/* Start Python in a process that has none; where it runs already, only find it. May be
 * called from several threads, and again: after success it does nothing, after an error
 * the paths may be other ones. (Not after ELIZA_ABI_MISMATCH of a Python that has eliza
 * but cannot import it, as where it is damaged: that Python runs on, and is asked again.)
 *
 * libpython    the shared library of the Python that eliza was installed for, of the
 *              same minor version; NULL: what ELIZA_LIBPYTHON names, or else what the
 *              loader finds under its usual name
 * executable   that Python, for example of a virtual environment: where eliza is found;
 *              NULL: what ELIZA_PYTHON names, or else the first one on PATH
 *
 * `python -m eliza.abi` prints all three paths. Python reads neither PYTHON* variables
 * nor user site packages here, and leaves signals alone. It is shut down only where it
 * has no eliza. */
int eliza_abi_init(const char *libpython, const char *executable, char *err,
                   size_t err_cap);

/* The tries and cursors of eliza.h; NULL, and why, for another version. */
const eliza_api *eliza_get_api(uint32_t version, char *err, size_t err_cap);

/* ---- models ---- */

/* A model's file or bundle's folder. It is checked here, and loaded when first needed. */
int eliza_inference_create(const char *bundle, EliInferenceContext **out, char *err,
                           size_t err_cap);

/* Free the model and close its streams; calls that run end with ELIZA_CLOSED. NULL and
 * what was destroyed before are nothing to do. */
void eliza_inference_destroy(EliInferenceContext *ctx);

/* The ids of text_len bytes of UTF-8. *n is always their number; ELIZA_TOO_SMALL, and
 * nothing written, if that is more than cap. With add_special the begin-of-sequence id
 * comes first where the vocabulary wants one; with parse_special the texts of special
 * ids become those ids. */
int eliza_inference_tokenize(EliInferenceContext *ctx, const char *text, size_t text_len,
                             int add_special, int parse_special, int32_t *ids,
                             size_t cap, size_t *n, char *err, size_t err_cap);

/* The bytes of ids, which may begin and end inside a character, and a NUL. *n is always
 * their number without the NUL; ELIZA_TOO_SMALL, and nothing written, unless cap is more
 * than that. Special ids have none. */
int eliza_inference_detokenize(EliInferenceContext *ctx, const int32_t *ids,
                               size_t num_ids, char *text, size_t cap, size_t *n,
                               char *err, size_t err_cap);

/* ---- streams ---- */

/* `config_size` is sizeof(eliza_llm_stream_config_t); with config NULL all of it is 0.
 * The members "of the model" hold for all streams of a context: others can be had when
 * none is open, and the model is loaded anew then. */
int eliza_inference_llm_stream_open(EliInferenceContext *ctx,
                                    const eliza_llm_stream_config_t *config,
                                    size_t config_size, EliLlmStream **out, char *err,
                                    size_t err_cap);

/* Append ids. A cancelled or failed call leaves the stream as it was. */
int eliza_inference_llm_stream_prefill(EliLlmStream *stream, const int32_t *ids,
                                       size_t num_ids, char *err, size_t err_cap);

/* Generate.
 *
 *   ELIZA_OK (0)      more follows
 *   ELIZA_FINAL (1)   the end: an end id, the limit in free text, or a complete choice;
 *                     all was written. Calling again says so again, without ids
 *   ELIZA_TOO_SMALL   as many ids and whole characters were written as had room; the
 *                     rest is kept, and the next calls write it before anything is
 *                     computed. If nothing had room: -2, and the text says what it needs
 *
 * text gets UTF-8, never a part of a character, with a NUL behind. All outputs are set
 * to 0 first; *num_text (bytes without the NUL), *drafted and *accepted may be NULL. An
 * end id is not among the ids. Bytes that can be no character are U+FFFD in the text. */
int eliza_inference_llm_stream_next(EliLlmStream *stream, int32_t *ids, size_t ids_cap,
                                    size_t *num_ids, char *text, size_t text_cap,
                                    size_t *num_text, int32_t *drafted,
                                    int32_t *accepted, char *err, size_t err_cap);

/* Stop the call that runs, or else the next one: ELIZA_CANCELLED, within one piece of
 * work, for each further call until reset or reset_keep. From any thread; always 0. */
int eliza_inference_llm_stream_cancel(EliLlmStream *stream);

/* Drop all ids, output that waits, and a cancellation. Choices bind again, from their
 * beginning. */
int eliza_inference_llm_stream_reset(EliLlmStream *stream, char *err, size_t err_cap);

/* The same, but the first n_keep ids stay. Returns how many did: 0 where the runtime
 * cannot cut there. */
int eliza_inference_llm_stream_reset_keep(EliLlmStream *stream, int32_t n_keep,
                                          char *err, size_t err_cap);

/* Write all that a stream is to a file, whole or not at all, with mode 0600; and go on
 * from one. Output that waits must be fetched before. */
int eliza_inference_llm_stream_save_slot(EliLlmStream *stream, const char *path,
                                         char *err, size_t err_cap);
int eliza_inference_llm_stream_restore_slot(EliLlmStream *stream, const char *path,
                                            char *err, size_t err_cap);

/* NULL and what was closed before are nothing to do. */
void eliza_inference_llm_stream_close(EliLlmStream *stream);

/* ---- choices ---- */

/* Bind what comes next to the choices of a token tree payload, JSON or RTKT, from their
 * beginning, until they are cleared. `path` says which; NULL where there is one set only.
 * mode 0: the highest allowed logit; 1: a draw, which needs a temperature. The payload's
 * model must be this one, if it names one. After an error the former choices still hold.
 * An incomplete choice at the limit of ids is ELIZA_TOKEN_LIMIT. */
int eliza_inference_set_token_trie(EliLlmStream *stream, const void *payload,
                                   size_t payload_len, const char *path, int mode,
                                   char *err, size_t err_cap);

/* Let free text come next. */
int eliza_inference_clear_token_trie(EliLlmStream *stream, char *err, size_t err_cap);

/* The name of the choice that is complete, and a NUL; "" if none is. Buffers: as
 * eliza_inference_detokenize. */
int eliza_inference_token_trie_name(EliLlmStream *stream, char *name, size_t cap,
                                    size_t *n, char *err, size_t err_cap);

#ifdef __cplusplus
}
#endif

#endif /* ELIZA_INFERENCE_H */
