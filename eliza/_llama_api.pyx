"""The part of llama.cpp that samples; see the .pxd."""

from libc.stdint cimport int32_t, uintptr_t

from ._types cimport token_t

from .errors import AbiMismatch, InvalidArgument

__all__ = ["CALLS", "bind_library", "end_ids", "layout"]

# After these the candidates are fewer, or one of them is taken: what the trie allows
# may be gone. A temperature of 0 leaves one candidate as well.
TRUNCATING = frozenset(
    {
        "adaptive-p", "dist", "greedy", "infill", "min-p", "mirostat", "mirostat-v2",
        "temp", "temp-ext", "tfs-z", "top-a", "top-k", "top-n-sigma", "top-p",
        "typical", "xtc",
    }
)


cdef object field(str name, const void* of, const void* at, size_t size):
    return (name, <const char*>at - <const char*>of, size)


def layout():
    """Return how the structs of llama.cpp were when this module was compiled.

    Returns
    -------
    dict of str to (int, tuple of (str, int, int))
        For each struct its size, and its fields with offset and size.
    """
    cdef llama_token_data data
    cdef llama_token_data_array array
    cdef llama_sampler smpl
    cdef size_t word = sizeof(void*)
    return {
        "llama_token_data": (
            sizeof(llama_token_data),
            (
                field("id", &data, &data.id, sizeof(data.id)),
                field("logit", &data, &data.logit, sizeof(data.logit)),
                field("p", &data, &data.p, sizeof(data.p)),
            ),
        ),
        "llama_token_data_array": (
            sizeof(llama_token_data_array),
            (
                field("data", &array, &array.data, sizeof(array.data)),
                field("size", &array, &array.size, sizeof(array.size)),
                field("selected", &array, &array.selected, sizeof(array.selected)),
                field("sorted", &array, &array.sorted, sizeof(array.sorted)),
            ),
        ),
        "llama_sampler": (
            sizeof(llama_sampler),
            (
                field("iface", &smpl, &smpl.iface, word),
                field("ctx", &smpl, &smpl.ctx, word),
            ),
        ),
        "llama_sampler_i": (
            sizeof(llama_sampler_i),
            tuple(
                (name, at * word, word)
                for at, name in enumerate(
                    (
                        "name", "accept", "apply", "reset", "clone", "free",
                        "backend_init", "backend_accept", "backend_apply",
                        "backend_set_input", "backend_reset", "copy_state",
                    )
                )
            ),
        ),
    }


#: The functions that are called, in the order of `llama_calls`.
CALLS = (
    "llama_sampler_init",
    "llama_sampler_clone",
    "llama_sampler_free",
    "llama_sampler_apply",
    "llama_sampler_accept",
    "llama_sampler_reset",
    "llama_sampler_chain_get",
    "llama_sampler_chain_n",
    "llama_sampler_chain_add",
    "llama_sampler_chain_remove",
    "llama_get_logits_ith",
    "llama_get_model",
    "llama_model_get_vocab",
    "llama_vocab_n_tokens",
    "llama_vocab_is_eog",
)


def bind_library(addresses):
    """Say where the functions of llama.cpp are; once, before anything else here.

    Parameters
    ----------
    addresses : sequence of int
        In the order of `CALLS`.

    Raises
    ------
    AbiMismatch
        Another copy of the library is in use already.
    """
    cdef void** call = <void**>&llama
    cdef Py_ssize_t i
    if len(addresses) != len(CALLS) or sizeof(llama) != len(CALLS) * sizeof(void*):
        raise InvalidArgument(f"give the addresses of {len(CALLS)} functions")
    given = [int(address) for address in addresses]
    for i in range(len(given)):
        if call[i] != NULL and <uintptr_t>call[i] != <uintptr_t>given[i]:
            raise AbiMismatch(
                f"{CALLS[i]} is at another place than before: two copies of llama.cpp "
                "are loaded; use one"
            )
    for i in range(len(given)):
        call[i] = <void*><uintptr_t>given[i]


cdef int must_be_bound() except -1:
    if llama.sampler_init == NULL:
        raise InvalidArgument("make links with eliza.hooks.llama")
    return 0


def end_ids(vocab):
    """Return the end-of-generation ids of a vocabulary.

    Parameters
    ----------
    vocab : int
        The address of a `llama_vocab`.

    Returns
    -------
    tuple of int
    """
    cdef const void* at = <const void*><uintptr_t>vocab
    cdef token_t id
    must_be_bound()
    return tuple(
        [id for id in range(llama.vocab_n_tokens(at)) if llama.vocab_is_eog(at, id)]
    )


cdef str name_of(const llama_sampler* smpl):
    """Return what a sampler calls itself, without marks; "" if it has no name."""
    cdef const char* name
    if smpl == NULL or smpl.iface == NULL or smpl.iface.name == NULL:
        return ""
    name = smpl.iface.name(smpl)
    if name == NULL:
        return ""
    # "+top-k" and "-top-k": within the graph, or not; "?top-k": it does nothing.
    return name.decode("utf-8", "replace").lstrip("+-")


cdef object truncating(llama_sampler* chain):
    """Return the name of the first link after which ours would come too late."""
    cdef int32_t i
    cdef llama_sampler* smpl
    for i in range(llama.chain_n(chain)):
        smpl = llama.chain_get(chain, i)
        if smpl != NULL and llama.chain_get(smpl, -1) == smpl:
            name = truncating(smpl)
            if name is not None:
                return name
        elif name_of(smpl) in TRUNCATING:
            return f"{name_of(smpl)} (link {i})"
    return None


cdef llama_sampler* chain_at(object address) except NULL:
    cdef llama_sampler* chain = <llama_sampler*><uintptr_t>address
    must_be_bound()
    if chain == NULL or llama.chain_get(chain, -1) != chain:
        raise InvalidArgument("that is no sampler chain of llama.cpp")
    return chain


cdef int32_t place_in(llama_sampler* chain, const llama_sampler* smpl) noexcept:
    cdef int32_t i
    for i in range(llama.chain_n(chain)):
        if llama.chain_get(chain, i) == smpl:
            return i
    return -1
