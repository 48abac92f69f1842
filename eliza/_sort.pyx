"""Sorting sequences of ids; see the .pxd."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from ._types cimport index_t, token_t

cdef extern from "_bits.h":
    int eliza_clz64(uint64_t x) noexcept nogil
    void eliza_prefetch(const void* x) noexcept nogil

cdef enum:
    AHEAD = 8                # items to ask ahead for
    RADIX_FROM = 48          # below it, insertion sort wins over passes of 256 counts

cdef struct item_t:
    uint64_t key             # the next ids of a sequence, packed
    index_t index            # which sequence

cdef struct group_t:         # items [first, first + n) are equal so far
    index_t first
    index_t n


cdef inline uint64_t pack(
    const token_t* ids, int64_t at, int64_t end, int bits, int count
) noexcept nogil:
    """Put `count` ids into one number that sorts as they do; 0 stands for the end."""
    cdef uint64_t key = 0
    cdef int64_t i
    for i in range(at, at + count):
        key <<= bits
        if i < end:
            key |= <uint64_t>(ids[i] + 1)
    return key << (64 - bits * count)


cdef void items_sort(item_t* items, item_t* spare, index_t n) noexcept nogil:
    """Sort by key, stable: radix over the bytes that differ, or by insertion."""
    cdef index_t[256] place
    cdef item_t* source = items
    cdef item_t* target = spare
    cdef item_t* swap
    cdef item_t one
    cdef uint64_t differ = 0
    cdef index_t i, j, count, total
    cdef int shift
    if n < RADIX_FROM:
        for i in range(1, n):
            one = items[i]
            j = i
            while j > 0 and items[j - 1].key > one.key:
                items[j] = items[j - 1]
                j -= 1
            items[j] = one
        return
    for i in range(1, n):
        differ |= items[i].key ^ items[0].key
    for shift in range(0, 64, 8):
        if (differ >> shift) & 255 == 0:
            continue
        memset(place, 0, sizeof(place))
        for i in range(n):
            place[(source[i].key >> shift) & 255] += 1
        total = 0
        for i in range(256):
            count = place[i]
            place[i] = total
            total += count
        for i in range(n):
            j = (source[i].key >> shift) & 255
            target[place[j]] = source[i]
            place[j] += 1
        swap = source
        source = target
        target = swap
    if source != items:
        memcpy(items, source, n * sizeof(item_t))


cdef bint in_order(
    const token_t* ids, const int64_t* start, index_t n, index_t* lcp, int64_t* equal
) noexcept nogil:
    """Say whether the sequences are sorted as they stand; if so lcp is filled.

    One sequential pass: 5 ms for 100,000 sequences where the sort takes 14.
    """
    cdef int64_t a, b, end_a, end_b
    cdef index_t i
    equal[0] = 0
    lcp[0] = 0
    for i in range(1, n):
        a = start[i - 1]
        b = end_a = start[i]
        end_b = start[i + 1]
        while a < end_a and b < end_b and ids[a] == ids[b]:
            a += 1
            b += 1
        if a < end_a and (b == end_b or ids[a] > ids[b]):
            return False
        if a == end_a and b == end_b:
            lcp[i] = LCP_EQUAL
            equal[0] += 1
        else:
            lcp[i] = <index_t>(b - start[i])
    return True


cdef index_t group_refine(
    const int64_t* start, item_t* items, group_t group, int64_t depth, int bits,
    int count, index_t* lcp, group_t* later, int64_t* equal,
) noexcept nogil:
    """Split a sorted group where keys change; returns how many parts are left to sort.

    The parts go to `later`. Keys that are equal are either all at their end in this
    window, and then so are the sequences, or none is.
    """
    cdef index_t i = group.first, end = group.first + group.n, j, k, n_later = 0
    cdef int64_t length
    while i < end:
        j = i + 1
        while j < end and items[j].key == items[i].key:
            j += 1
        if j - i > 1:
            length = start[items[i].index + 1] - start[items[i].index]
            if length < depth + count:
                for k in range(i + 1, j):
                    lcp[k] = LCP_EQUAL
                equal[0] += j - i - 1
            else:
                later[n_later].first = i
                later[n_later].n = j - i
                n_later += 1
        if j < end:
            lcp[j] = <index_t>(
                depth + eliza_clz64(items[j].key ^ items[i].key) // bits
            )
        i = j
    return n_later


cdef int64_t leaves_sort(
    const token_t* ids, const int64_t* start, index_t n, int bits,
    index_t* order, index_t* lcp,
) noexcept nogil:
    cdef int64_t equal = 0, depth = 0
    cdef int count = 64 // bits  # ids that fit into one key
    cdef index_t i, g, n_open, n_later
    cdef item_t *items
    cdef item_t *spare
    cdef group_t *open
    cdef group_t *later
    cdef group_t *swap
    if in_order(ids, start, n, lcp, &equal):
        for i in range(n):
            order[i] = i
        return equal
    items = <item_t*>malloc(n * sizeof(item_t))
    spare = <item_t*>malloc(n * sizeof(item_t))
    open = <group_t*>malloc((n // 2 + 1) * sizeof(group_t))
    later = <group_t*>malloc((n // 2 + 1) * sizeof(group_t))
    equal = -1
    if items != NULL and spare != NULL and open != NULL and later != NULL:
        equal = 0
        lcp[0] = 0
        for i in range(n):
            items[i].index = i
        open[0].first = 0
        open[0].n = n
        n_open = 1
        # A work list, not recursion: sequences may share 100,000 ids.
        while n_open:
            n_later = 0
            for g in range(n_open):
                for i in range(open[g].first, open[g].first + open[g].n):
                    if i + AHEAD < n:
                        eliza_prefetch(ids + start[items[i + AHEAD].index] + depth)
                    if i + 2 * AHEAD < n:
                        eliza_prefetch(start + items[i + 2 * AHEAD].index)
                    items[i].key = pack(
                        ids, start[items[i].index] + depth,
                        start[items[i].index + 1], bits, count,
                    )
                items_sort(items + open[g].first, spare, open[g].n)
                n_later += group_refine(
                    start, items, open[g], depth, bits, count, lcp,
                    later + n_later, &equal,
                )
            depth += count
            swap = open
            open = later
            later = swap
            n_open = n_later
        for i in range(n):
            order[i] = items[i].index
    free(items)
    free(spare)
    free(open)
    free(later)
    return equal


cdef index_t leaves_squeeze(index_t n, index_t* order, index_t* lcp) noexcept nogil:
    cdef index_t i, kept = 0
    for i in range(n):
        if lcp[i] != LCP_EQUAL:
            order[kept] = order[i]
            lcp[kept] = lcp[i]
            kept += 1
    return kept
