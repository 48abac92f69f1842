"""What a selection gives, and how the words of strangers are written in messages."""

cimport cython


@cython.final
cdef class USE:
    cdef readonly object factory


@cython.final
cdef class DEFAULT:
    cdef readonly object factory     # or None


@cython.final
cdef class ERROR:
    cdef readonly str message
    cdef readonly object error       # the class that unwrap() raises
    cdef readonly object cause       # what a probe raised, or None

# Neither raises, whatever the object does when it is asked for its text.
cdef str said(object value)
cdef str raised(object error)
