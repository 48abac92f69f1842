/* The symbols of eliza_inference.h.
 *
 * Why this is a library of its own and not a compiled module of Python: a module refers
 * to the interpreter's variables, so that no process without an interpreter can load it,
 * and linking it with libpython would bring a second interpreter into a process whose
 * Python has none. This one refers to nothing. It looks the interpreter up when it is
 * first called, starting it where there is none, and forwards to `eliza.abi._inference`.
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h> /* for types and versions only: nothing of it is linked */

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

#define EXPORT __attribute__((visibility("default")))
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static const eliza_table *the_table; /* written once, atomically */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

/* ---- texts ---- */

/* Write a text as far as it fits, whole characters only. */
static int fail(char *err, size_t cap, int code, const char *text) {
  size_t n = strlen(text), room;
  if (err == NULL || cap == 0) return code;
  room = n < cap - 1 ? n : cap - 1;
  if (room < n) {
    while (room > 0 && ((unsigned char)text[room] & 0xC0) == 0x80) room--;
  }
  memcpy(err, text, room);
  err[room] = 0;
  return code;
}

static int fail_with(char *err, size_t cap, int code, const char *form,
                     const char *detail) {
  char text[1024];
  snprintf(text, sizeof text, form, detail);
  return fail(err, cap, code, text);
}

/* ---- the interpreter's functions, found when needed ---- */

typedef struct python {
  int (*is_initialized)(void);
  const char *(*version)(void);
  void (*init_config)(PyConfig *);
  PyStatus (*set_text)(PyConfig *, wchar_t **, const char *);
  PyStatus (*initialize)(const PyConfig *);
  int (*finalize)(void);
  void (*clear_config)(PyConfig *);
  int (*failed)(PyStatus);
  PyGILState_STATE (*ensure)(void);
  void (*release)(PyGILState_STATE);
  PyThreadState *(*save)(void);
  PyObject *(*import_module)(const char *);
  PyObject *(*attribute)(PyObject *, const char *);
  void *(*pointer)(PyObject *, const char *);
  void (*drop)(PyObject *);
  void (*fetch)(PyObject **, PyObject **, PyObject **);
  PyObject *(*str)(PyObject *);
  const char *(*utf8)(PyObject *);
  void (*clear_error)(void);
} python;

static int find(void *where, python *py) {
  const struct {
    const char *name;
    void **to;
  } names[] = {
      {"Py_IsInitialized", (void **)&py->is_initialized},
      {"Py_GetVersion", (void **)&py->version},
      {"PyConfig_InitIsolatedConfig", (void **)&py->init_config},
      {"PyConfig_SetBytesString", (void **)&py->set_text},
      {"Py_InitializeFromConfig", (void **)&py->initialize},
      {"Py_FinalizeEx", (void **)&py->finalize},
      {"PyConfig_Clear", (void **)&py->clear_config},
      {"PyStatus_Exception", (void **)&py->failed},
      {"PyGILState_Ensure", (void **)&py->ensure},
      {"PyGILState_Release", (void **)&py->release},
      {"PyEval_SaveThread", (void **)&py->save},
      {"PyImport_ImportModule", (void **)&py->import_module},
      {"PyObject_GetAttrString", (void **)&py->attribute},
      {"PyCapsule_GetPointer", (void **)&py->pointer},
      {"Py_DecRef", (void **)&py->drop},
      {"PyErr_Fetch", (void **)&py->fetch},
      {"PyObject_Str", (void **)&py->str},
      {"PyUnicode_AsUTF8", (void **)&py->utf8},
      {"PyErr_Clear", (void **)&py->clear_error},
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    *names[i].to = dlsym(where, names[i].name);
    if (*names[i].to == NULL) return 0;
  }
  return 1;
}

static int check_version(const python *py, char *err, size_t cap) {
  const char *wanted = TEXT(PY_MAJOR_VERSION) "." TEXT(PY_MINOR_VERSION) ".";
  char text[256];
  if (strncmp(py->version(), wanted, strlen(wanted)) == 0) return ELIZA_OK;
  snprintf(text, sizeof text, "eliza was built for Python %sx, and this is %.40s", wanted,
           py->version());
  return fail(err, cap, ELIZA_ABI_MISMATCH, text);
}

/* Whether an exception says that there is no module called eliza. */
static int is_absence(const python *py, PyObject *value) {
  PyObject *name = value != NULL ? py->attribute(value, "name") : NULL;
  const char *utf8 = name != NULL ? py->utf8(name) : NULL;
  int absent = utf8 != NULL && strcmp(utf8, "eliza") == 0;
  py->clear_error();
  py->drop(name);
  return absent;
}

/* Put the exception that is set into a text. */
static int fail_by_exception(const python *py, int *absent, char *err, size_t cap) {
  PyObject *type = NULL, *value = NULL, *trace = NULL, *text = NULL;
  const char *utf8 = NULL;
  py->fetch(&type, &value, &trace);
  *absent = is_absence(py, value);
  if (value != NULL) text = py->str(value);
  if (text != NULL) utf8 = py->utf8(text);
  fail_with(err, cap, 0, "eliza cannot be imported by the Python of this process: %s",
            utf8 != NULL ? utf8 : "an error without a text");
  py->clear_error();
  py->drop(type);
  py->drop(value);
  py->drop(trace);
  py->drop(text);
  return ELIZA_ABI_MISMATCH;
}

/* With Python running: get the functions behind the symbols. *absent: it has no eliza,
 * and nothing but modules of its own was imported. */
static int attach(const python *py, int *absent, char *err, size_t cap) {
  PyGILState_STATE gil;
  PyObject *module, *capsule = NULL;
  const eliza_table *table = NULL;
  int status = check_version(py, err, cap);
  *absent = 0;
  if (status != ELIZA_OK) return status;
  gil = py->ensure();
  module = py->import_module("eliza.abi._inference");
  if (module != NULL) capsule = py->attribute(module, "_TABLE");
  if (capsule != NULL) table = py->pointer(capsule, ELIZA_TABLE_CAPSULE);
  if (table == NULL) {
    status = fail_by_exception(py, absent, err, cap);
  } else if (table->size != sizeof(eliza_table)) {
    status = fail(err, cap, ELIZA_ABI_MISMATCH,
                  "the library is of another build than the eliza that Python imports");
  } else {
    __atomic_store_n(&the_table, table, __ATOMIC_RELEASE);
  }
  py->drop(capsule);
  py->drop(module);
  py->release(gil);
  return status;
}

/* The functions, or NULL and a status. */
static const eliza_table *functions(int *status, char *err, size_t cap) {
  const eliza_table *table = __atomic_load_n(&the_table, __ATOMIC_ACQUIRE);
  python py;
  int absent;
  if (table != NULL) return table;
  if (!find(RTLD_DEFAULT, &py) || !py.is_initialized()) {
    *status = fail(err, cap, ELIZA_ABI_MISMATCH,
                   "no Python runs in this process: call eliza_abi_init first");
    return NULL;
  }
  *status = attach(&py, &absent, err, cap);
  return __atomic_load_n(&the_table, __ATOMIC_ACQUIRE);
}

/* ---- starting it ---- */

static int start(const python *py, const char *executable, char *err, size_t cap) {
  PyConfig config;
  PyStatus status;
  int absent, code = check_version(py, err, cap);
  if (code != ELIZA_OK) return code;
  py->init_config(&config);
  status.err_msg = NULL;
  if (executable != NULL) {
    /* From here it finds pyvenv.cfg, and with that the packages. */
    status = py->set_text(&config, &config.program_name, executable);
    if (!py->failed(status))
      status = py->set_text(&config, &config.executable, executable);
    if (py->failed(status)) goto failed;
  }
  status = py->initialize(&config);
  if (py->failed(status)) goto failed;
  py->clear_config(&config);
  code = attach(py, &absent, err, cap);
  if (absent) {
    py->finalize(); /* so that it can be started as another one */
  } else {
    py->save(); /* the GIL is nobody's from now on */
  }
  return code;
failed:
  py->clear_config(&config);
  return fail_with(err, cap, ELIZA_BACKEND_ERROR, "Python does not start: %s",
                   status.err_msg != NULL ? status.err_msg : "it does not say why");
}

static int start_or_find(const char *libpython, const char *executable, char *err,
                         size_t cap) {
  python py;
  void *library;
  const char *reason;
  int absent;
  if (__atomic_load_n(&the_table, __ATOMIC_ACQUIRE) != NULL) {
    return fail(err, cap, ELIZA_OK, "");
  }
  if (find(RTLD_DEFAULT, &py) && py.is_initialized())
    return attach(&py, &absent, err, cap);
  if (libpython == NULL) libpython = getenv("ELIZA_LIBPYTHON");
  if (libpython == NULL) libpython = ELIZA_LIBPYTHON_NAME;
  if (executable == NULL) executable = getenv("ELIZA_PYTHON");
  /* Global: compiled modules look for the interpreter among all global symbols. */
  library = dlopen(libpython, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    reason = dlerror(); /* a second call would give NULL */
    return fail_with(err, cap, ELIZA_ABI_MISMATCH, "libpython cannot be loaded: %s",
                     reason != NULL ? reason : libpython);
  }
  if (!find(library, &py)) {
    return fail_with(err, cap, ELIZA_ABI_MISMATCH, "%s is no libpython of version 3.11+",
                     libpython);
  }
  if (py.is_initialized()) return attach(&py, &absent, err, cap);
  return start(&py, executable, err, cap);
}

EXPORT int eliza_abi_init(const char *libpython, const char *executable, char *err,
                          size_t err_cap) {
  int status;
  fail(err, err_cap, 0, "");
  pthread_mutex_lock(&starting);
  status = start_or_find(libpython, executable, err, err_cap);
  pthread_mutex_unlock(&starting);
  return status;
}

EXPORT const char *eliza_inference_abi_version(void) {
  return TEXT(ELIZA_INFERENCE_ABI_VERSION);
}

EXPORT const eliza_api *eliza_get_api(uint32_t version, char *err, size_t err_cap) {
  int status = ELIZA_OK;
  const eliza_table *table = functions(&status, err, err_cap);
  if (table == NULL) return NULL;
  if (table->api->version != version) {
    fail(err, err_cap, 0, "this eliza has version " "1"
         " of its API, and another one was asked for");
    return NULL;
  }
  fail(err, err_cap, 0, "");
  return table->api;
}

/* ---- forwarding ---- */

#define FORWARD(member, ...)                                   \
  int status = ELIZA_ABI_MISMATCH;                             \
  const eliza_table *table = functions(&status, err, err_cap); \
  return table == NULL ? status : table->member(__VA_ARGS__, err, err_cap)

EXPORT int eliza_inference_create(const char *bundle, EliInferenceContext **out,
                                  char *err, size_t err_cap) {
  if (out != NULL) *out = NULL;
  FORWARD(create, bundle, out);
}

EXPORT int eliza_inference_tokenize(EliInferenceContext *ctx, const char *text,
                                    size_t text_len, int add_special, int parse_special,
                                    int32_t *ids, size_t cap, size_t *n, char *err,
                                    size_t err_cap) {
  FORWARD(tokenize, ctx, text, text_len, add_special, parse_special, ids, cap, n);
}

EXPORT int eliza_inference_detokenize(EliInferenceContext *ctx, const int32_t *ids,
                                      size_t num_ids, char *text, size_t cap, size_t *n,
                                      char *err, size_t err_cap) {
  FORWARD(detokenize, ctx, ids, num_ids, text, cap, n);
}

EXPORT int eliza_inference_llm_stream_open(EliInferenceContext *ctx,
                                           const eliza_llm_stream_config_t *config,
                                           size_t config_size, EliLlmStream **out,
                                           char *err, size_t err_cap) {
  if (out != NULL) *out = NULL;
  FORWARD(open, ctx, config, config_size, out);
}

EXPORT int eliza_inference_llm_stream_prefill(EliLlmStream *stream, const int32_t *ids,
                                              size_t num_ids, char *err,
                                              size_t err_cap) {
  FORWARD(prefill, stream, ids, num_ids);
}

EXPORT int eliza_inference_llm_stream_next(EliLlmStream *stream, int32_t *ids,
                                           size_t ids_cap, size_t *num_ids, char *text,
                                           size_t text_cap, size_t *num_text,
                                           int32_t *drafted, int32_t *accepted,
                                           char *err, size_t err_cap) {
  FORWARD(next, stream, ids, ids_cap, num_ids, text, text_cap, num_text, drafted,
          accepted);
}

EXPORT int eliza_inference_llm_stream_reset(EliLlmStream *stream, char *err,
                                            size_t err_cap) {
  FORWARD(reset, stream);
}

EXPORT int eliza_inference_llm_stream_reset_keep(EliLlmStream *stream, int32_t n_keep,
                                                 char *err, size_t err_cap) {
  FORWARD(reset_keep, stream, n_keep);
}

EXPORT int eliza_inference_llm_stream_save_slot(EliLlmStream *stream, const char *path,
                                                char *err, size_t err_cap) {
  FORWARD(save_slot, stream, path);
}

EXPORT int eliza_inference_llm_stream_restore_slot(EliLlmStream *stream,
                                                   const char *path, char *err,
                                                   size_t err_cap) {
  FORWARD(restore_slot, stream, path);
}

EXPORT int eliza_inference_set_token_trie(EliLlmStream *stream, const void *payload,
                                          size_t payload_len, const char *path, int mode,
                                          char *err, size_t err_cap) {
  FORWARD(set_token_trie, stream, payload, payload_len, path, mode);
}

EXPORT int eliza_inference_clear_token_trie(EliLlmStream *stream, char *err,
                                            size_t err_cap) {
  FORWARD(clear_token_trie, stream);
}

EXPORT int eliza_inference_token_trie_name(EliLlmStream *stream, char *name, size_t cap,
                                           size_t *n, char *err, size_t err_cap) {
  FORWARD(token_trie_name, stream, name, cap, n);
}

/* Without a Python there is nothing that they could be called for. */

EXPORT int eliza_inference_llm_stream_cancel(EliLlmStream *stream) {
  const eliza_table *table = __atomic_load_n(&the_table, __ATOMIC_ACQUIRE);
  return table == NULL ? ELIZA_OK : table->cancel(stream);
}

EXPORT void eliza_inference_llm_stream_close(EliLlmStream *stream) {
  const eliza_table *table = __atomic_load_n(&the_table, __ATOMIC_ACQUIRE);
  if (table != NULL) table->close(stream);
}

EXPORT void eliza_inference_destroy(EliInferenceContext *ctx) {
  const eliza_table *table = __atomic_load_n(&the_table, __ATOMIC_ACQUIRE);
  if (table != NULL) table->destroy(ctx);
}
