/* A process without Python: what tests/test_abi_hosts.py compiles and runs.
 *
 *   host LIBPYTHON EXECUTABLE MODEL PAYLOAD [WRONG ...]     ("" stands for NULL)
 *
 * First Python is started as each of the WRONG executables, which must fail.
 *
 * Each function of eliza_api is called once with the types of the header, from several
 * threads that Python knows nothing of; then a model answers.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eliza_inference.h"

static char err[500];

static int check(int status, const char *what) {
  if (status < 0) {
    printf("%s: %d %s\n", what, status, err);
    exit(1);
  }
  return status;
}
#define MUST(call) check(call, #call)
#define E err, sizeof err

enum { V = 64, END = 2 };
static const eliza_api *api;
static eliza_trie *trie;

/* Take what an upward row prefers, with every function on the way. */
static void *walk(void *result) {
  char own[200];
  eliza_cursor *cursor = NULL, *copy = NULL;
  float row[V], masked[V];
  double logprobs[8];
  uint32_t words[2];
  int32_t ids[8], id = -1, state = -1;
  size_t n, left;
  int64_t leaf = -1;
  const int32_t exits[] = {END};
  int ok = 1;
  for (int i = 0; i < V; i++) row[i] = (float)i;
  ok &= api->cursor_new(trie, exits, 1, NULL, 0, &cursor, own, sizeof own) == ELIZA_OK;
  ok &= api->cursor_copy(cursor, &copy, own, sizeof own) == ELIZA_OK;
  ok &= api->cursor_remaining(cursor, &left, own, sizeof own) == ELIZA_OK && left == 3;
  while (ok) {
    ok &= api->cursor_state(cursor, &state, own, sizeof own) == ELIZA_OK;
    if (state == ELIZA_DONE) break;
    ok &= api->cursor_allowed(cursor, ids, 8, &n, own, sizeof own) == ELIZA_OK && n > 0;
    ok &= api->cursor_forced(cursor, ids, 8, &n, own, sizeof own) == ELIZA_OK;
    ok &= api->cursor_argmax(cursor, row, V, &id, own, sizeof own) == ELIZA_OK;
    ok &= api->cursor_bitmask(cursor, words, 2, own, sizeof own) == ELIZA_OK &&
          (words[id / 32] >> id % 32 & 1);
    memcpy(masked, row, sizeof row);
    ok &= api->cursor_mask(cursor, masked, V, own, sizeof own) == ELIZA_OK &&
          masked[id] == row[id] && isinf(masked[0]);
    ok &= api->cursor_logprobs(cursor, row, V, 0, logprobs, 8, &n, own, sizeof own) ==
              ELIZA_OK && logprobs[n - 1] > -1;
    ok &= api->cursor_sample(cursor, row, V, 0.01, 0, 1, 0, 0.5, ids, own, sizeof own) ==
              ELIZA_OK && ids[0] == id;
    ok &= api->cursor_accept(cursor, 63, own, sizeof own) == ELIZA_OFF_PATH;
    ok &= api->cursor_accept(cursor, id, own, sizeof own) == ELIZA_OK;
    ok &= api->cursor_rollback(cursor, 1, own, sizeof own) == ELIZA_OK;
    ok &= api->cursor_accept(cursor, id, own, sizeof own) == ELIZA_OK;
  }
  ok &= api->cursor_path(cursor, ids, 8, &n, own, sizeof own) == ELIZA_OK && n == 2;
  ok &= api->cursor_leaf(cursor, &leaf, own, sizeof own) == ELIZA_OK;
  ok &= api->cursor_reset(cursor, own, sizeof own) == ELIZA_OK;
  api->cursor_free(&copy);
  api->cursor_free(&cursor);
  ok &= cursor == NULL && copy == NULL;
  *(int64_t *)result = ok ? leaf : -2;
  return NULL;
}

static void tries(void) {
  const int32_t tokens[] = {7, 7, 8, 20, 21};
  const int64_t offsets[] = {0, 1, 3, 5};
  const char *names[] = {"go", "go on", "stop"};
  char name[20];
  size_t n;
  int32_t vocab;
  int64_t leaves[4];
  int agreed = 0;
  pthread_t threads[4];
  eliza_trie *other = NULL;
  const char *json = "{\"modelId\":\"\",\"descriptors\":[{\"path\":\"a\",\"leaves\":"
                     "[{\"name\":\"x\",\"tokens\":[5]}]}]}";
  api = eliza_get_api(ELIZA_API_VERSION, E);
  if (api == NULL || !ELIZA_API_HAS(api, cursor_logprobs)) check(-1, "eliza_get_api");
  MUST(api->trie_from_arrays(tokens, offsets, 3, names, V, NULL, 0, &trie, E));
  MUST(api->trie_n_leaves(trie, &n, E));
  MUST(api->trie_n_vocab(trie, &vocab, E));
  if (n != 3 || vocab != V) check(-1, "sizes");
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, walk, &leaves[i]);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 4; i++) agreed += leaves[i] == 2;
  MUST(api->trie_name(trie, leaves[0], name, sizeof name, &n, E));
  MUST(api->trie_find(trie, "go on", leaves, E));
  printf("trie: %s\nthreads: %d of 4\n", name, leaves[0] == 1 ? agreed : 0);
  MUST(api->trie_from_payload(json, strlen(json), "a", V, &other, E));
  api->trie_free(&other);
  if (api->trie_from_bytes(json, 5, &other, E) != ELIZA_BUNDLE_ERROR) check(-1, "bytes");
  if (api->trie_open("/nowhere", &other, E) != ELIZA_BUNDLE_ERROR) check(-1, "open");
  api->trie_free(&trie);
  api->trie_free(&trie);
}

static void stream(const char *model, const char *payload) {
  EliInferenceContext *ctx = NULL;
  EliLlmStream *s = NULL;
  eliza_llm_stream_config_t config = {.max_tokens = 50};
  int32_t ids[8];
  char text[16];
  size_t n, n_text;
  int status;
  MUST(eliza_inference_create(model, &ctx, E));
  MUST(eliza_inference_llm_stream_open(ctx, &config, sizeof config, &s, E));
  MUST(eliza_inference_tokenize(ctx, "The user", 8, 0, 1, ids, 8, &n, E));
  MUST(eliza_inference_llm_stream_prefill(s, ids, n, E));
  MUST(eliza_inference_set_token_trie(s, payload, strlen(payload), "action", 0, E));
  printf("stream: ");
  do {
    status = MUST(eliza_inference_llm_stream_next(s, ids, 8, &n, text, sizeof text,
                                                  &n_text, NULL, NULL, E));
    printf("%s", text);
  } while (status != ELIZA_FINAL);
  printf("\n");
  eliza_inference_llm_stream_close(s);
  if (eliza_inference_llm_stream_reset(s, E) != ELIZA_CLOSED) check(-1, "closed");
  eliza_inference_destroy(ctx);
}

int main(int argc, char **argv) {
  if (argc < 5) return 3;
  if (eliza_get_api(ELIZA_API_VERSION, E) != NULL) return 4;
  for (int i = 5; i < argc; i++) {
    if (eliza_abi_init(argv[1], argv[i], E) != ELIZA_ABI_MISMATCH) return 5;
    if (strstr(err, "eliza cannot be imported") == NULL) return 6;
    if (eliza_get_api(ELIZA_API_VERSION, E) != NULL) return 7;
    if (strstr(err, "call eliza_abi_init first") == NULL) return 8;
  }
  if (eliza_abi_init(argv[1][0] ? argv[1] : NULL, argv[2][0] ? argv[2] : NULL, E) < 0) {
    printf("%s\n", err);
    return 2;
  }
  tries();
  stream(argv[3], argv[4]);
  return 0;
}
