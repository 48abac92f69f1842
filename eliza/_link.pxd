"""A link in llama.cpp's sampler chains: its state, and what llama.cpp calls.

    llama_sampler ── link_t ── shared_t ── Bound (a trie, a subset, exit ids)
                               one for all clones of a link

A link keeps the candidates that the trie allows and puts -inf on the others. It is
called by llama.cpp in whatever thread and without the GIL, so nothing here touches a
Python object: references are counted by atomic operations, errors are noted in the link
and raised by the next call from Python, and a Bound that nobody needs any more waits in
a list until someone who holds the GIL calls `links_sweep`.

Once an error is noted, every candidate gets -inf until it is raised or the link is
reset: a link that cannot keep its promise lets nothing through.

The `ctx` of a sampler of ours is its link_t, or NULL where a clone found no memory for
one: such a sampler lets nothing through.
"""

from libc.stdint cimport int64_t, uint32_t

from ._llama_api cimport llama_sampler, llama_sampler_i, llama_token_data_array
from ._position cimport bound_t, pos_t
from ._types cimport index_t, token_t

cdef llama_sampler_i link_i  # what llama.cpp calls

cdef enum link_error:
    LINK_OK
    LINK_OFF_PATH            # error_id was accepted and is not allowed; nothing changed
    LINK_NO_CANDIDATE        # no allowed candidate has a logit above -inf
    LINK_NO_CANDIDATES       # there were none at all
    LINK_NO_MEMORY
    LINK_DAMAGED             # the file that the trie is from is not what it was

cdef struct shared_t:
    shared_t *next           # first: in the list of those that wait for the GIL
    int64_t count            # of the links that use it
    bound_t b                # valid as long as `bound`
    void *bound              # the Bound; a reference of ours
    pos_t start              # in `b`: where a reset goes back to
    token_t *ends            # [n_ends] owned, sorted: what ends a generation
    index_t n_ends
    bint greedy              # select the best one
    bint free_after          # after the choice nothing is masked; else all but ends

cdef struct link_t:
    int64_t count            # the sampler's reference, and those of Python objects
    bint alive               # the sampler has not been freed
    shared_t *shared         # another one after copy_state
    pos_t p                  # in shared.b
    link_error error         # the first since it was last raised
    token_t error_id
    uint32_t *bits           # [n_vocab / 32] owned, made when needed; 0 between calls
    token_t *ids             # [room] owned, as are
    float *kept
    index_t room

# The shared part takes its own reference to `bound`, and copies `ends`; NULL without
# memory. Both with the GIL.
cdef shared_t* shared_make(
    object bound, const bound_t* b, const pos_t* start, const token_t* ends,
    index_t n_ends, bint greedy, bint free_after,
)
# Give back the Bounds of links that are gone.
cdef void links_sweep() noexcept

# A sampler with a new link at p, a position in shared.b; takes one reference to
# `shared`. The link has one reference, the sampler's. NULL without memory, `shared` is
# then released.
cdef llama_sampler* link_make(shared_t* shared, const pos_t* p) noexcept nogil

cdef void link_retain(link_t* link) noexcept nogil
cdef void link_release(link_t* link) noexcept nogil

# The ids that may come next, sorted; sets LINK_NO_MEMORY and returns False. When the
# choice is complete they are `ends`; then it is not called with free_after.
cdef bint link_ids(link_t* link, const token_t** ids, index_t* n) noexcept nogil

cdef inline bint link_is_free(const link_t* link) noexcept nogil:
    return link.p.done and link.shared.free_after

# Keep the candidates whose ids are listed, sorted and below n_vocab, and put -inf on
# all others. NaN becomes -inf; where some are +inf they become 0 and the others -inf,
# because the links that follow would compute inf - inf. `bits` is all 0 and stays so;
# `kept` has room for n. Returns where the best one is, ties to the lowest id, or -1.
cdef int64_t candidates_keep(
    llama_token_data_array* cur, const token_t* ids, index_t n, token_t n_vocab,
    uint32_t* bits, float* kept,
) noexcept nogil
