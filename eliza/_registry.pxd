"""Backend factories by name.

A registry is filled by any thread and read by all, without a lock. Its tables are
dictionaries with str keys that only grow, and an entry goes in by one `setdefault`: who
comes second finds the first. So there is nothing that a fork could leave locked.
"""

cimport cython


@cython.final
cdef class Entry:
    cdef object factory
    cdef str name            # as the factory writes it
    cdef str key             # the name without regard to case
    cdef tuple keys          # by which it may be asked for too


@cython.final
cdef class Registry:
    cdef dict entries        # key of the name or of another one -> Entry
    cdef dict broken         # key -> why the entry point of that name is not there
    cdef object builtins     # factories, or what gives them
    cdef str group           # of entry points; None for none
    cdef set loading         # (process, thread) that are in register_builtins
    cdef bint loaded

    cdef bint add(self, object factory, str other, bint builtin=*) except -1
    cdef int load(self, object point) except -1
    cdef Entry find(self, str name)

# The entries in the order in which they were registered.
cdef list in_order(Registry registry)
