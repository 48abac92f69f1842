"""What the symbols of eliza_inference.h forward to: C in front, `streams` behind.

Each function checks pointers, takes the GIL, and catches everything.
"""

from libc.stdint cimport int32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from eliza._capi cimport bytes_of, ids_of, note, text_of

from eliza._capi import _API
from eliza.abi import streams
from eliza.errors import AbiMismatch, InvalidArgument

__all__ = []


cdef extern from "table.h" nogil:
    const char* ELIZA_API_CAPSULE
    const char* ELIZA_TABLE_CAPSULE
    enum:
        ELIZA_OK
        ELIZA_FINAL
        ELIZA_TOO_SMALL
        ELIZA_BACKEND_ERROR
    ctypedef struct EliInferenceContext:
        pass
    ctypedef struct EliLlmStream:
        pass
    ctypedef struct eliza_llm_stream_config_t:
        int32_t max_tokens
        float temperature
        float top_p
        int32_t top_k
        float repeat_penalty
        int32_t draft_max
        const char *mtp_drafter_path
        const char *gbnf_grammar
        int32_t n_gpu_layers
        const char *cache_type_k
        const char *cache_type_v
        int32_t context_size
        uint64_t seed
        float min_p
    ctypedef struct eliza_table:
        size_t size
        void *create
        void *destroy
        void *tokenize
        void *detokenize
        void *open
        void *prefill
        void *next
        void *cancel
        void *reset
        void *reset_keep
        void *save_slot
        void *restore_slot
        void *close
        void *set_token_trie
        void *clear_token_trie
        void *token_trie_name
        const void *api

cdef enum:
    # Where the config of the library that these names are from ends.
    OLDEST_CONFIG = 80
    # More than any later one will have: a number that is no size is not followed.
    LARGEST_CONFIG = 4096


# What crosses

cdef object context_of(EliInferenceContext* ctx):
    return streams.context(<uintptr_t>ctx)


cdef object stream_of(EliLlmStream* stream):
    return streams.stream(<uintptr_t>stream)


cdef int must(const void* pointer, str what) except -1:
    if pointer == NULL:
        raise InvalidArgument(f"{what} is NULL")
    return 0


cdef int clear(char* err, size_t err_cap) noexcept:
    if err != NULL and err_cap > 0:
        err[0] = 0
    return ELIZA_OK


cdef str optional(const char* text, str what):
    return "" if text == NULL else text_of(text, what)


cdef int give_bytes(
    bytes data, char* out, size_t cap, size_t* n, char* err, size_t err_cap
) except -100:
    """Write all bytes and a NUL, or nothing."""
    cdef size_t size = len(data)
    must(n, "a place for the number")
    if cap > 0:
        must(out, "the buffer")
    n[0] = size
    if size >= cap:
        if cap > 0:
            out[0] = 0
        clear(err, err_cap)
        return ELIZA_TOO_SMALL
    memcpy(out, <const char*>data, size)
    out[size] = 0
    return clear(err, err_cap)


cdef object read_config(const eliza_llm_stream_config_t* given, size_t size):
    cdef eliza_llm_stream_config_t config
    cdef const unsigned char* rest = <const unsigned char*>given
    cdef size_t i
    memset(&config, 0, sizeof(config))
    if given != NULL:
        if not OLDEST_CONFIG <= size <= LARGEST_CONFIG:
            raise InvalidArgument(
                f"config_size is {size}; it is the size of the struct, {sizeof(config)}"
            )
        for i in range(sizeof(config), size):
            if rest[i]:
                raise AbiMismatch(
                    f"the config has {size} bytes, and something stands behind the "
                    f"{sizeof(config)} that this version knows"
                )
        memcpy(&config, given, min(size, sizeof(config)))
    return streams.Config(
        config.max_tokens,
        config.temperature,
        config.top_p,
        config.top_k,
        config.repeat_penalty,
        config.draft_max,
        optional(config.mtp_drafter_path, "mtp_drafter_path"),
        optional(config.gbnf_grammar, "gbnf_grammar"),
        config.n_gpu_layers,
        optional(config.cache_type_k, "cache_type_k"),
        optional(config.cache_type_v, "cache_type_v"),
        config.context_size,
        config.seed,
        config.min_p,
    )


# Models

cdef int create(
    const char* bundle, EliInferenceContext** out, char* err, size_t err_cap
) noexcept with gil:
    try:
        must(out, "a place for the context")
        out[0] = NULL
        made = streams.Context(text_of(bundle, "bundle"))
        out[0] = <EliInferenceContext*><uintptr_t>made.handle
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef void destroy(EliInferenceContext* ctx) noexcept with gil:
    try:
        streams.destroy(<uintptr_t>ctx)
    except BaseException as error:
        note(error, NULL, 0)


cdef int tokenize(
    EliInferenceContext* ctx, const char* text, size_t text_len, int add_special,
    int parse_special, int32_t* ids, size_t cap, size_t* n, char* err, size_t err_cap,
) noexcept with gil:
    cdef size_t i
    cdef list found
    try:
        must(n, "a place for the number")
        if cap > 0:
            must(ids, "ids")
        found = context_of(ctx).tokenize(
            bytes_of(text, text_len, "text"), add_special != 0, parse_special != 0
        )
        clear(err, err_cap)
        n[0] = len(found)
        if n[0] > cap:
            return ELIZA_TOO_SMALL
        for i in range(n[0]):
            ids[i] = found[i]
        return ELIZA_OK
    except BaseException as error:
        return note(error, err, err_cap)


cdef int detokenize(
    EliInferenceContext* ctx, const int32_t* ids, size_t num_ids, char* text,
    size_t cap, size_t* n, char* err, size_t err_cap,
) noexcept with gil:
    try:
        data = context_of(ctx).detokenize(ids_of(ids, num_ids, "ids").tolist())
        return give_bytes(data, text, cap, n, err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


# Streams

cdef int open_stream(
    EliInferenceContext* ctx, const eliza_llm_stream_config_t* config,
    size_t config_size, EliLlmStream** out, char* err, size_t err_cap,
) noexcept with gil:
    try:
        must(out, "a place for the stream")
        out[0] = NULL
        made = context_of(ctx).open(read_config(config, config_size))
        out[0] = <EliLlmStream*><uintptr_t>made.handle
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int prefill(
    EliLlmStream* stream, const int32_t* ids, size_t num_ids, char* err, size_t err_cap
) noexcept with gil:
    try:
        stream_of(stream).prefill(ids_of(ids, num_ids, "ids").tolist())
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int next_step(
    EliLlmStream* stream, int32_t* ids, size_t ids_cap, size_t* num_ids, char* text,
    size_t text_cap, size_t* num_text, int32_t* drafted, int32_t* accepted, char* err,
    size_t err_cap,
) noexcept with gil:
    cdef size_t i
    cdef list given
    cdef bytes written
    try:
        if num_text != NULL:
            num_text[0] = 0
        if drafted != NULL:
            drafted[0] = 0
        if accepted != NULL:
            accepted[0] = 0
        if text != NULL and text_cap > 0:
            text[0] = 0
        must(num_ids, "num_ids")
        num_ids[0] = 0
        must(ids, "ids")
        must(text, "text")
        if text_cap == 0:
            raise InvalidArgument("text_cap is 0: there is no room for a NUL")
        # Sizes that no Python number of bytes can have are as good as the largest.
        output = stream_of(stream).next(
            min(ids_cap, <size_t>(2**31)), min(text_cap, <size_t>(2**31))
        )
        given = output.ids
        written = output.text
        num_ids[0] = len(given)
        for i in range(num_ids[0]):
            ids[i] = given[i]
        memcpy(text, <const char*>written, len(written))
        text[len(written)] = 0
        if num_text != NULL:
            num_text[0] = len(written)
        if drafted != NULL:
            drafted[0] = output.drafted
        if accepted != NULL:
            accepted[0] = output.accepted
        clear(err, err_cap)
        if output.waits:
            return ELIZA_TOO_SMALL
        return ELIZA_FINAL if output.final else ELIZA_OK
    except BaseException as error:
        return note(error, err, err_cap)


cdef int cancel(EliLlmStream* stream) noexcept with gil:
    try:
        found = streams.find_stream(<uintptr_t>stream)
        if found is not None:
            found.cancel()
    except BaseException as error:
        note(error, NULL, 0)
    return ELIZA_OK


cdef int reset(EliLlmStream* stream, char* err, size_t err_cap) noexcept with gil:
    try:
        stream_of(stream).reset_keep(0)
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int reset_keep(
    EliLlmStream* stream, int32_t n_keep, char* err, size_t err_cap
) noexcept with gil:
    cdef int kept
    try:
        kept = stream_of(stream).reset_keep(n_keep)
        clear(err, err_cap)
        return kept
    except BaseException as error:
        return note(error, err, err_cap)


cdef int save_slot(
    EliLlmStream* stream, const char* path, char* err, size_t err_cap
) noexcept with gil:
    try:
        stream_of(stream).save_slot(text_of(path, "path"))
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int restore_slot(
    EliLlmStream* stream, const char* path, char* err, size_t err_cap
) noexcept with gil:
    try:
        stream_of(stream).restore_slot(text_of(path, "path"))
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef void close_stream(EliLlmStream* stream) noexcept with gil:
    try:
        found = streams.find_stream(<uintptr_t>stream)
        if found is not None:
            found.close()
    except BaseException as error:
        note(error, NULL, 0)


# Choices

cdef int set_token_trie(
    EliLlmStream* stream, const void* payload, size_t payload_len, const char* path,
    int mode, char* err, size_t err_cap,
) noexcept with gil:
    try:
        stream_of(stream).set_token_trie(
            bytes_of(payload, payload_len, "payload"),
            None if path == NULL else text_of(path, "path"),
            mode,
        )
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int clear_token_trie(
    EliLlmStream* stream, char* err, size_t err_cap
) noexcept with gil:
    try:
        stream_of(stream).session.clear_token_trie()
        return clear(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int token_trie_name(
    EliLlmStream* stream, char* name, size_t cap, size_t* n, char* err, size_t err_cap
) noexcept with gil:
    try:
        found = stream_of(stream).session.name or ""
        return give_bytes(
            found.encode("utf-8", "replace"), name, cap, n, err, err_cap
        )
    except BaseException as error:
        return note(error, err, err_cap)


cdef eliza_table TABLE

TABLE.size = sizeof(eliza_table)
TABLE.create = <void*>create
TABLE.destroy = <void*>destroy
TABLE.tokenize = <void*>tokenize
TABLE.detokenize = <void*>detokenize
TABLE.open = <void*>open_stream
TABLE.prefill = <void*>prefill
TABLE.next = <void*>next_step
TABLE.cancel = <void*>cancel
TABLE.reset = <void*>reset
TABLE.reset_keep = <void*>reset_keep
TABLE.save_slot = <void*>save_slot
TABLE.restore_slot = <void*>restore_slot
TABLE.close = <void*>close_stream
TABLE.set_token_trie = <void*>set_token_trie
TABLE.clear_token_trie = <void*>clear_token_trie
TABLE.token_trie_name = <void*>token_trie_name
TABLE.api = PyCapsule_GetPointer(_API, ELIZA_API_CAPSULE)

_TABLE = PyCapsule_New(&TABLE, ELIZA_TABLE_CAPSULE, NULL)
