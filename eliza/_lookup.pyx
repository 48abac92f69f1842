"""Where the last ids of a history came before; see the .pxd."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from .errors import OutOfMemory

__all__ = ["find_match"]


cdef int64_t latest_match(
    const int32_t* ids, int64_t n, int64_t longest, int64_t shortest
) noexcept nogil:
    cdef int64_t at, k, most = shortest - 1, found = -1
    for at in range(n - 2, -1, -1):
        k = 0
        while k < longest and k <= at and ids[at - k] == ids[n - 1 - k]:
            k += 1
        if k > most:
            most = k
            found = at + 1
            if k == longest:
                break
    return found


def find_match(list history not None, int64_t longest, int64_t shortest):
    """Return where what followed the last ids begins, when they came before.

    Parameters
    ----------
    history : list of int
        Ids of 32 bits.
    longest, shortest : int
        How many of the last ids must have come before: the longest match wins, and
        among equals the latest.

    Returns
    -------
    int
        An index into the history, or -1 if there is no such match.
    """
    cdef int64_t i, n = len(history), found
    cdef int32_t* ids = <int32_t*>malloc(max(n, 1) * sizeof(int32_t))
    if ids == NULL:
        raise OutOfMemory(f"no memory for {n} ids")
    try:
        for i in range(n):
            ids[i] = history[i]
        found = latest_match(ids, n, longest, shortest)
    finally:
        free(ids)
    return found
