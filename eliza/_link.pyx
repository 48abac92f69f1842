"""What llama.cpp calls; see the .pxd."""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cpython.ref cimport Py_DECREF, Py_INCREF

from ._llama_api cimport (
    llama,
    llama_sampler,
    llama_token_data,
    llama_token_data_array,
)
from ._position cimport (
    STEP_DAMAGED,
    STEP_OFF,
    bound_t,
    has_id,
    pos_accept,
    pos_gather,
    pos_room,
    pos_span,
    pos_t,
    step_t,
)
from ._types cimport index_t, token_t


cdef extern from "_counted.h" nogil:
    void eliza_retain(int64_t*) noexcept
    bint eliza_release(int64_t*) noexcept
    void eliza_push(void**, void*) noexcept
    void* eliza_take(void**) noexcept

cdef void* waiting = NULL    # shared parts whose Bound is to be given back


# Candidates

cdef void candidates_blank(llama_token_data_array* cur) noexcept nogil:
    cdef size_t i
    for i in range(cur.size):
        cur.data[i].logit = -INFINITY
    cur.selected = -1
    cur.sorted = False


cdef int64_t candidates_best(const llama_token_data_array* cur) noexcept nogil:
    """Return where the highest logit is, ties to the lowest id; -1 if none."""
    cdef const llama_token_data* data = cur.data
    cdef float top = -INFINITY
    cdef token_t id = 0
    cdef int64_t best = -1, i
    for i in range(<int64_t>cur.size):
        if data[i].logit > top or (data[i].logit == top and best >= 0 and
                                   data[i].id < id):
            best = i
            top = data[i].logit
            id = data[i].id
    return best


cdef inline bint in_place(
    const llama_token_data_array* cur, const token_t* ids, index_t n
) noexcept nogil:
    """Tell whether each id is the candidate of that number, as in a fresh array."""
    cdef index_t k
    if n == 0 or <size_t>ids[n - 1] >= cur.size:
        return False
    for k in range(n):
        if cur.data[ids[k]].id != ids[k]:
            return False
    return True


cdef int64_t keep_in_place(
    llama_token_data_array* cur, const token_t* ids, index_t n, float* kept
) noexcept nogil:
    # Save, fill, put back: a test for each candidate takes twice as long.
    cdef llama_token_data* data = cur.data
    cdef float top = -INFINITY
    cdef int64_t best = -1
    cdef index_t k
    cdef size_t i
    for k in range(n):
        kept[k] = data[ids[k]].logit
        if kept[k] > top:
            top = kept[k]
            best = ids[k]
    for i in range(cur.size):
        data[i].logit = -INFINITY
    for k in range(n):
        if top == INFINITY:
            data[ids[k]].logit = 0 if kept[k] == INFINITY else -INFINITY
        elif kept[k] > -INFINITY:
            data[ids[k]].logit = kept[k]
    return best


cdef int64_t keep_anywhere(
    llama_token_data_array* cur, const token_t* ids, index_t n, token_t n_vocab,
    uint32_t* bits,
) noexcept nogil:
    cdef llama_token_data* data = cur.data
    cdef float top = -INFINITY, logit
    cdef token_t id, best_id = 0
    cdef int64_t best = -1, i
    cdef index_t k
    for k in range(n):
        bits[ids[k] >> 5] |= <uint32_t>1 << (ids[k] & 31)
    for i in range(<int64_t>cur.size):
        id = data[i].id
        if <uint32_t>id < <uint32_t>n_vocab and bits[id >> 5] >> (id & 31) & 1:
            logit = data[i].logit
            if logit > top or (logit == top and best >= 0 and id < best_id):
                best = i
                top = logit
                best_id = id
            if logit > -INFINITY:
                continue
        data[i].logit = -INFINITY
    for k in range(n):
        bits[ids[k] >> 5] = 0
    if top == INFINITY:
        for i in range(<int64_t>cur.size):
            data[i].logit = 0 if data[i].logit == INFINITY else -INFINITY
    return best


cdef int64_t candidates_keep(
    llama_token_data_array* cur, const token_t* ids, index_t n, token_t n_vocab,
    uint32_t* bits, float* kept,
) noexcept nogil:
    cdef int64_t best
    if in_place(cur, ids, n):
        best = keep_in_place(cur, ids, n, kept)
    else:
        best = keep_anywhere(cur, ids, n, n_vocab, bits)
    cur.sorted = False
    return best


# Links

cdef bint link_reserve(link_t* link, index_t room) noexcept nogil:
    cdef token_t* ids
    cdef float* kept
    if room > link.room:
        ids = <token_t*>malloc(room * sizeof(token_t))
        kept = <float*>malloc(room * sizeof(float))
        if ids == NULL or kept == NULL:
            free(ids)
            free(kept)
            return False
        free(link.ids)
        free(link.kept)
        link.ids = ids
        link.kept = kept
        link.room = room
    if link.bits == NULL:
        link.bits = <uint32_t*>calloc(
            (<size_t>link.shared.b.trie.n_vocab + 31) // 32, sizeof(uint32_t)
        )
    return link.bits != NULL


cdef inline void note(link_t* link, link_error error, token_t id) noexcept nogil:
    if link.error == LINK_OK:
        link.error = error
        link.error_id = id


cdef bint link_ids(link_t* link, const token_t** ids, index_t* n) noexcept nogil:
    cdef bint whole
    if link.p.done:
        ids[0] = link.shared.ends
        n[0] = link.shared.n_ends
        whole = True
    else:
        whole = pos_span(&link.shared.b, &link.p, ids, n)
    if not link_reserve(link, n[0] if whole else pos_room(&link.shared.b, &link.p)):
        note(link, LINK_NO_MEMORY, -1)
        return False
    if not whole:
        ids[0] = link.ids
        n[0] = pos_gather(&link.shared.b, &link.p, link.ids)
    return True


cdef void link_release(link_t* link) noexcept nogil:
    if eliza_release(&link.count):
        shared_release(link.shared)
        free(link.bits)
        free(link.ids)
        free(link.kept)
        free(link)


cdef void link_retain(link_t* link) noexcept nogil:
    eliza_retain(&link.count)


cdef llama_sampler* link_make(shared_t* shared, const pos_t* p) noexcept nogil:
    cdef link_t* link = <link_t*>calloc(1, sizeof(link_t))
    if link == NULL:
        shared_release(shared)
        return NULL
    link.count = 1
    link.alive = True
    link.shared = shared
    link.p = p[0]
    return llama.sampler_init(&link_i, link)


# The callbacks

cdef const char* on_name(const llama_sampler* smpl) noexcept nogil:
    return "eliza-token-trie"


cdef void on_accept(llama_sampler* smpl, token_t id) noexcept nogil:
    cdef link_t* link = <link_t*>smpl.ctx
    cdef step_t step
    if link == NULL or link.error != LINK_OK or link_is_free(link):
        return
    if link.p.done:
        if not has_id(link.shared.ends, link.shared.n_ends, id):
            note(link, LINK_OFF_PATH, id)
        return
    step = pos_accept(&link.shared.b, &link.p, id)
    if step == STEP_OFF:
        note(link, LINK_OFF_PATH, id)
    elif step == STEP_DAMAGED:
        note(link, LINK_DAMAGED, id)


cdef void on_apply(llama_sampler* smpl, llama_token_data_array* cur) noexcept nogil:
    cdef link_t* link = <link_t*>smpl.ctx
    cdef const token_t* ids = NULL
    cdef index_t n = 0
    cdef int64_t best
    if link == NULL or link.error != LINK_OK:
        candidates_blank(cur)
        return
    if cur.size == 0:
        note(link, LINK_NO_CANDIDATES, -1)
        cur.selected = -1
        return
    if link_is_free(link):
        if not link.shared.greedy:
            return
        best = candidates_best(cur)
    elif link_ids(link, &ids, &n):
        best = candidates_keep(
            cur, ids, n, link.shared.b.trie.n_vocab, link.bits, link.kept
        )
    else:
        best = -1
    if best < 0:
        note(link, LINK_NO_CANDIDATE, -1)
        candidates_blank(cur)
    elif link.shared.greedy:
        cur.selected = best
    elif not (
        0 <= cur.selected < <int64_t>cur.size and
        cur.data[cur.selected].logit > -INFINITY
    ):
        cur.selected = -1


cdef void on_reset(llama_sampler* smpl) noexcept nogil:
    cdef link_t* link = <link_t*>smpl.ctx
    if link != NULL:
        link.p = link.shared.start
        link.error = LINK_OK


cdef llama_sampler* on_clone(const llama_sampler* smpl) noexcept nogil:
    cdef link_t* link = <link_t*>smpl.ctx
    cdef link_t* other
    cdef llama_sampler* clone = NULL
    if link != NULL:
        eliza_retain(&link.shared.count)
        clone = link_make(link.shared, &link.p)
    if clone == NULL:
        return llama.sampler_init(&link_i, NULL)
    other = <link_t*>clone.ctx
    other.error = link.error
    other.error_id = link.error_id
    return clone


cdef void on_free(llama_sampler* smpl) noexcept nogil:
    cdef link_t* link = <link_t*>smpl.ctx
    if link != NULL:
        link.alive = False
        smpl.ctx = NULL
        link_release(link)


cdef void on_copy_state(const llama_sampler* src, llama_sampler* dst) noexcept nogil:
    cdef link_t* link = <link_t*>src.ctx
    cdef link_t* other = <link_t*>dst.ctx
    if other == NULL:
        return
    if link == NULL:
        note(other, LINK_NO_MEMORY, -1)
        return
    if link.shared != other.shared:
        eliza_retain(&link.shared.count)
        shared_release(other.shared)
        other.shared = link.shared
        free(other.bits)     # of the other vocabulary's size
        other.bits = NULL
    other.p = link.p
    other.error = link.error
    other.error_id = link.error_id


link_i.name = on_name
link_i.accept = on_accept
link_i.apply = on_apply
link_i.reset = on_reset
link_i.clone = on_clone
link_i.free = on_free
link_i.copy_state = on_copy_state


# What clones share

cdef void shared_release(shared_t* shared) noexcept nogil:
    if eliza_release(&shared.count):
        free(shared.ends)
        eliza_push(&waiting, shared)


cdef shared_t* shared_make(
    object bound, const bound_t* b, const pos_t* start, const token_t* ends,
    index_t n_ends, bint greedy, bint free_after,
):
    cdef shared_t* shared = <shared_t*>calloc(1, sizeof(shared_t))
    if shared == NULL:
        return NULL
    shared.ends = <token_t*>malloc(max(n_ends, 1) * sizeof(token_t))
    if shared.ends == NULL:
        free(shared)
        return NULL
    memcpy(shared.ends, ends, n_ends * sizeof(token_t))
    shared.count = 1
    shared.b = b[0]
    shared.start = start[0]
    shared.n_ends = n_ends
    shared.greedy = greedy
    shared.free_after = free_after
    Py_INCREF(bound)
    shared.bound = <void*>bound
    return shared


cdef void links_sweep() noexcept:
    cdef shared_t* shared = <shared_t*>eliza_take(&waiting)
    cdef shared_t* next
    while shared != NULL:
        next = shared.next
        Py_DECREF(<object>shared.bound)
        free(shared)
        shared = next
