"""The shapes of the data: read this first.

No code here and no NumPy headers. Lengths and indices of arrays inside a trie are
`index_t`; ids are `token_t`; sizes and offsets that a caller hands in are int64_t.
"""

from libc.stdint cimport int32_t, uint32_t

ctypedef int32_t token_t     # an id; np.int32
ctypedef uint32_t index_t    # number of a node, a leaf, a place in the pool; np.uint32

# node_t.depth keeps the flag "a leaf ends here" in its highest bit.
cdef enum:
    DEPTH_BITS = 0x7FFFFFFF

cdef struct node_t:          # 24 bytes
    index_t run              # where the run that leads into the node starts in the pool
    index_t depth            # ids from the root to the end of that run; bit 31: a leaf
    index_t child            # its children are the nodes [child, (this + 1)->child)
    index_t lo               # the leaves at and below it are [lo, hi); a leaf that ends
    index_t hi               # here is lo, as the shorter of two sequences sorts first
    index_t parent           # the root's is the root itself

cdef struct trie_t:
    # A radix trie in breadth-first order, root first, so that the children of a node
    # are neighbours and sorted by their first id. The root is at depth 0, has no run,
    # and no leaf ends there. The unbranched ids into node i are
    #     pool[node[i].run : node[i].run + depth(i) - depth(parent(i))].
    index_t n_nodes
    index_t n_leaves
    index_t n_pool
    index_t n_inner
    index_t n_exit_ids
    index_t max_depth        # length of the longest leaf
    token_t n_vocab
    bint trusted             # False: from a file, nodes are checked when entered
    node_t *node             # [n_nodes + 1], the last only closes child ranges
    token_t *key             # [n_nodes] first id of the run into a node; -1 at the root
    token_t *pool            # [n_pool] of leaf i, what leaf i - 1 does not start with
    index_t *leaf_node       # [n_leaves] the node at which a leaf ends
    index_t *inner           # [n_inner] nodes where a leaf ends and others go on
    token_t *exit_ids        # [n_exit_ids] sorted and unique for each leaf
    index_t *exit_start      # [n_leaves + 1] or NULL: exit_ids hold for every leaf
