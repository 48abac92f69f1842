"""Where the last ids of a history came before.

A session with `draft="lookup"` asks that at each step, and the history may be long: in
Python it took 1 ms for 32,000 ids, here 0.1, nearly all of it for reading the list.
"""

from libc.stdint cimport int32_t, int64_t

# The index behind the latest of the longest earlier runs of ids[:n] that equal its
# end, of at least `shortest` and at most `longest` ids; -1 if there is none.
cdef int64_t latest_match(
    const int32_t* ids, int64_t n, int64_t longest, int64_t shortest
) noexcept nogil
