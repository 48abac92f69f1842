"""What a best-first search over the choices of a trie knows: scores and bounds.

    scored     choices whose last id has a likelihood; of them only the scores are kept,
               and the best one
    open       branches: ids that have a likelihood but no logits after them yet, whose
               bound beats the best choice (or ties with it, and may lie before it)
    idle       branches that cannot win any more: they still count in the total

    root ── REPLY -0.3 ── (scored)
         ── SE    -1.2 ── open: its logits decide between SEND and SEARCH
         ── TH    -9.0 ── idle, once the best choice has -0.3

Likelihoods are logarithms. A score is likelihood / length - prior + weight; a policy
that is left out is NULL. A branch lies below one point: a place in the trie at which
logits were looked at, known here by its number.
"""

cimport cython
from libc.stdint cimport int64_t

from ._bound cimport Bound
from ._cursor cimport Cursor
from ._position cimport bound_t, pos_t
from ._rows cimport row_t
from ._types cimport index_t, token_t

cdef struct policy_t:
    # [n_leaves] each, or NULL; borrowed from the Frontier's memoryviews.
    const double *length     # 0 for leaves that are not permitted
    const double *prior      # +inf for those
    const double *weight     # -inf for those

cdef struct branch_t:
    double logprob           # of all ids up to and including `token`
    double bound             # what no choice below can score more than
    double mass              # log of what the choices below can have together
    pos_t at                 # after `token`
    int64_t serial           # in the order of discovery; ties go by it
    token_t token
    index_t point            # what it leads on from

cdef struct branches_t:
    branch_t *data           # [room] owned
    int64_t n
    int64_t room

# What no leaf of [lo, hi) can score more than, whose common ids have this likelihood.
cdef double policy_bound(
    const policy_t* policy, double logprob, index_t lo, index_t hi
) noexcept nogil

# The score of a leaf with this likelihood.
cdef double policy_score(
    const policy_t* policy, double logprob, index_t leaf
) noexcept nogil

# Take out the branches within `delta` of the largest key and move them to `out`, the
# largest first, ties by serial; `by_mass` says which key. False: no memory.
cdef bint branches_take(
    branches_t* all, double delta, bint by_mass, branches_t* out
) noexcept nogil


@cython.final
cdef class Frontier:
    cdef policy_t policy
    cdef const double[::1] length, prior, weight
    cdef branches_t open, idle
    cdef branches_t taken    # scratch
    cdef double *scores      # [score_room] owned; of the n_scores choices known so far
    cdef int64_t n_scores, score_room
    cdef int64_t serial
    cdef list points         # what the caller gave for each point
    cdef Bound bound         # of all cursors, or None before the first
    cdef double *values      # [value_room] owned; scratch: log probabilities at a point
    cdef index_t value_room
    cdef readonly list weighed
    cdef readonly double best
    cdef readonly double logprob
    cdef readonly int64_t leaf
    cdef readonly double lead
    cdef double top          # the best bound at the last `promising`

    cdef int room_for(self, index_t n) except -1
    cdef int note(
        self, Cursor cursor, const row_t* row, const token_t* ids, index_t n
    ) except -1
    cdef int score(self, index_t leaf, double logprob) except -1
    cdef list handles(self)
