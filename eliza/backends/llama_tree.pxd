"""Which sequence ids the nodes of a tree carry in llama.cpp.

A token of a batch attends to the cells that share an id with it. So each branch needs
an id of its own, and a node needs the ids of all branches that pass through it. Ids
are given to the tips of a batch only: one that starts at a node of an earlier batch is
first added to the cells of the path there, which costs 0.1 us for each cell, and is
kept until the tree is cleared. A node that ends an id hands it on to its first child,
so that a branch which grows by one node at a time needs one id and no more additions.

It is compiled because it stands between two decodes, where nothing is left of its code
in the processor's caches: in Python it took 0.1 ms of an exact choice, here 0.03.
"""

cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Growth:
    cdef readonly list depths
    cdef readonly list owners
    cdef readonly list begun
    cdef readonly list extended
    cdef readonly dict ends


@cython.final
cdef class Tree:
    cdef readonly list depths
    cdef readonly list ids
    cdef list carriers       # of each node, the first id that it carries
    cdef dict ends           # node to the id whose last cell it is

    cdef int64_t depth(self, int64_t node, Growth growth) except -1
