// A process without Python: what tests/test_abi_hosts.py runs in Node.

'use strict';
const koffi = require('koffi');
const [library, libpython, executable, bundle, data] = process.argv.slice(2);
const lib = koffi.load(library);
const f = (declaration) => lib.func(declaration);
const tail = 'void *err, size_t cap)';
const init = f('int eliza_abi_init(const char *a, const char *b, ' + tail);
const create = f('int eliza_inference_create(const char *bundle, _Out_ void **out, ' + tail);
const destroy = f('void eliza_inference_destroy(void *ctx)');
const tokenize = f('int eliza_inference_tokenize(void *ctx, const char *text, size_t n, ' +
  'int add, int parse, void *ids, size_t ids_cap, _Out_ size_t *count, ' + tail);
const open = f('int eliza_inference_llm_stream_open(void *ctx, void *config, size_t size, ' +
  '_Out_ void **out, ' + tail);
const prefill = f('int eliza_inference_llm_stream_prefill(void *s, void *ids, size_t n, ' +
  tail);
const next = f('int eliza_inference_llm_stream_next(void *s, void *ids, size_t ids_cap, ' +
  '_Out_ size_t *count, void *text, size_t text_cap, _Out_ size_t *n_text, ' +
  '_Out_ int32_t *drafted, _Out_ int32_t *accepted, ' + tail);
const bind = f('int eliza_inference_set_token_trie(void *s, const char *payload, ' +
  'size_t n, const char *path, int mode, ' + tail);
const close = f('void eliza_inference_llm_stream_close(void *s)');
const cancel = f('int eliza_inference_llm_stream_cancel(void *s)');
const err = Buffer.alloc(500);
const must = (status) => {
  if (status < 0) throw new Error(status + ' ' + koffi.decode(err, 'char', -1));
  return status;
};
const E = [err, 500];
(async () => {
  let out = [null];
  if (create(bundle, out, ...E) !== -6) throw new Error('Python should not run yet');
  must(init(libpython, executable, ...E));
  must(create(bundle, out, ...E));
  const ctx = out[0];
  must(open(ctx, null, 0, out, ...E));
  const stream = out[0];
  const ids = Buffer.alloc(4 * 64), text = Buffer.alloc(200), n = [0], m = [0];
  must(tokenize(ctx, 'The user', 8, 0, 0, ids, 64, n, ...E));
  must(prefill(stream, ids, n[0], ...E));
  must(bind(stream, data, Buffer.byteLength(data), 'action', 0, ...E));
  let all = '', status = 0;
  while (status !== 1) {  // on a thread of koffi's, as a server would
    status = must(await new Promise((resolve, reject) => next.async(
      stream, ids, 64, n, text, 200, m, [0], [0], ...E,
      (error, value) => error ? reject(error) : resolve(value))));
    all += text.toString('utf8', 0, Number(m[0]));
  }
  cancel(stream);
  const after = next(stream, ids, 64, n, text, 200, m, [0], [0], ...E);
  close(stream);
  destroy(ctx);
  console.log(JSON.stringify({ text: all, after }));
})();
