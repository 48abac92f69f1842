/* What the library gets from `eliza.abi._inference`: the functions that have Python
 * behind them, each with the parameters of the one it is for. Both are of one build. */
#ifndef ELIZA_TABLE_H
#define ELIZA_TABLE_H

#include "../include/eliza_inference.h"

#define ELIZA_TABLE_CAPSULE "eliza.abi._inference._TABLE"

typedef struct eliza_table {
  uint32_t size; /* sizeof(eliza_table) */
  int (*create)(const char *, EliInferenceContext **, char *, size_t);
  void (*destroy)(EliInferenceContext *);
  int (*tokenize)(EliInferenceContext *, const char *, size_t, int, int, int32_t *,
                  size_t, size_t *, char *, size_t);
  int (*detokenize)(EliInferenceContext *, const int32_t *, size_t, char *, size_t,
                    size_t *, char *, size_t);
  int (*open)(EliInferenceContext *, const eliza_llm_stream_config_t *, size_t,
              EliLlmStream **, char *, size_t);
  int (*prefill)(EliLlmStream *, const int32_t *, size_t, char *, size_t);
  int (*next)(EliLlmStream *, int32_t *, size_t, size_t *, char *, size_t, size_t *,
              int32_t *, int32_t *, char *, size_t);
  int (*cancel)(EliLlmStream *);
  int (*reset)(EliLlmStream *, char *, size_t);
  int (*reset_keep)(EliLlmStream *, int32_t, char *, size_t);
  int (*save_slot)(EliLlmStream *, const char *, char *, size_t);
  int (*restore_slot)(EliLlmStream *, const char *, char *, size_t);
  void (*close)(EliLlmStream *);
  int (*set_token_trie)(EliLlmStream *, const void *, size_t, const char *, int, char *,
                        size_t);
  int (*clear_token_trie)(EliLlmStream *, char *, size_t);
  int (*token_trie_name)(EliLlmStream *, char *, size_t, size_t *, char *, size_t);
  const eliza_api *api;
} eliza_table;

#endif /* ELIZA_TABLE_H */
