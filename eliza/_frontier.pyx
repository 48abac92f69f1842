"""The bookkeeping of a best-first search; see the .pxd.

In Python it was half of eliza's own work in a call: after a decode nothing is left of
its code in the processor's caches, and 30 branches at a point took 0.25 ms; here 0.05.
"""

cimport cython
from libc.math cimport INFINITY, exp, log
from libc.stdint cimport int64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memmove

from cpython.buffer cimport Py_buffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from ._check cimport damaged
from ._cursor cimport Cursor, cursor_make
from ._logits cimport row_logprobs
from ._position cimport STEP_DAMAGED, live, pos_accept, pos_t
from ._rows cimport row_open, row_t
from ._types cimport index_t, node_t, token_t

from .errors import OutOfMemory

__all__ = ["Frontier", "forced_run", "path_counts"]


# -- policies --------------------------------------------------------------------------


cdef double policy_bound(
    const policy_t* policy, double logprob, index_t lo, index_t hi
) noexcept nogil:
    cdef double most
    cdef index_t i
    if policy.length != NULL:
        most = policy.length[lo]
        for i in range(lo + 1, hi):
            most = max(most, policy.length[i])
        logprob /= most
    if policy.prior != NULL:
        most = policy.prior[lo]
        for i in range(lo + 1, hi):
            most = min(most, policy.prior[i])
        logprob -= most
    if policy.weight != NULL:
        most = policy.weight[lo]
        for i in range(lo + 1, hi):
            most = max(most, policy.weight[i])
        logprob += most
    return logprob


cdef double policy_score(
    const policy_t* policy, double logprob, index_t leaf
) noexcept nogil:
    if policy.length != NULL:
        logprob /= policy.length[leaf]
    if policy.prior != NULL:
        logprob -= policy.prior[leaf]
    if policy.weight != NULL:
        logprob += policy.weight[leaf]
    return logprob


# -- branches --------------------------------------------------------------------------


cdef bint branches_grow(branches_t* all, int64_t n) noexcept nogil:
    """Make room for n more."""
    cdef branch_t* grown
    cdef int64_t room
    if all.n + n <= all.room:
        return True
    room = max(all.n + n, 2 * all.room)
    grown = <branch_t*>realloc(all.data, room * sizeof(branch_t))
    if grown == NULL:
        return False
    all.data = grown
    all.room = room
    return True


cdef inline double branch_key(const branch_t* branch, bint by_mass) noexcept nogil:
    return branch.mass if by_mass else branch.bound


cdef int order(double a, double b, int64_t first, int64_t second) noexcept nogil:
    if a != b:
        return 1 if a < b else -1
    return 1 if first > second else -1


cdef int by_bound(const void* a, const void* b) noexcept nogil:
    cdef const branch_t* x = <const branch_t*>a
    cdef const branch_t* y = <const branch_t*>b
    return order(x.bound, y.bound, x.serial, y.serial)


cdef int by_most(const void* a, const void* b) noexcept nogil:
    cdef const branch_t* x = <const branch_t*>a
    cdef const branch_t* y = <const branch_t*>b
    return order(x.mass, y.mass, x.serial, y.serial)


cdef bint branches_take(
    branches_t* all, double delta, bint by_mass, branches_t* out
) noexcept nogil:
    cdef double top = -INFINITY, key
    cdef int64_t i, kept = 0
    for i in range(all.n):
        top = max(top, branch_key(&all.data[i], by_mass))
    out.n = 0
    for i in range(all.n):
        key = branch_key(&all.data[i], by_mass)
        if key == top or key >= top - delta:  # top and delta may both be infinite
            if not branches_grow(out, 1):
                return False
            out.data[out.n] = all.data[i]
            out.n += 1
        else:
            all.data[kept] = all.data[i]
            kept += 1
    all.n = kept
    qsort(out.data, out.n, sizeof(branch_t), by_most if by_mass else by_bound)
    return True


cdef double branches_mass(const branches_t* all, double top) noexcept nogil:
    """Return the sum of exp(mass - top)."""
    cdef double total = 0
    cdef int64_t i
    for i in range(all.n):
        total += exp(all.data[i].mass - top)
    return total


# -- the owner -------------------------------------------------------------------------


@cython.auto_pickle(False)
cdef class Frontier:
    """Frontier(length=None, prior=None, weight=None)
    --

    Complete choices with their scores, and branches with their bounds.

    Parameters
    ----------
    length, prior, weight : ndarray of float64, shape (n_leaves,), optional
        As in `Policy`.

    Attributes
    ----------
    best : float
        The best score so far.
    leaf : int
        The choice that has it, the lowest of equals; -1 if there is none.
    logprob : float
        Its likelihood.
    lead : float
        By how much the first of the last `promising` branches is better than all that
        it could lose to: the next branch, and the best choice.
    weighed : list of (Cursor, bytes)
        The points at which choices part, and the log probabilities of the allowed ids
        among each other, as doubles.
    """

    def __cinit__(self, length=None, prior=None, weight=None):
        self.best = self.logprob = -INFINITY
        self.leaf = -1
        self.points = []
        self.weighed = []
        if length is not None:
            self.length = length
            self.policy.length = &self.length[0]
        if prior is not None:
            self.prior = prior
            self.policy.prior = &self.prior[0]
        if weight is not None:
            self.weight = weight
            self.policy.weight = &self.weight[0]

    def __dealloc__(self):
        free(self.open.data)
        free(self.idle.data)
        free(self.taken.data)
        free(self.scores)
        free(self.values)

    @property
    def n_open(self):
        """int: how many branches can still win."""
        return self.open.n

    @property
    def n_idle(self):
        """int: how many branches cannot win any more."""
        return self.idle.n

    cdef int room_for(self, index_t n) except -1:
        """Make room for n values, scores and branches more."""
        cdef double* grown
        cdef int64_t room
        if n > self.value_room:
            grown = <double*>realloc(self.values, n * sizeof(double))
            if grown == NULL:
                raise OutOfMemory(f"no memory for {n} branches")
            self.values = grown
            self.value_room = n
        if self.n_scores + n > self.score_room:
            room = max(self.n_scores + n, 2 * self.score_room)
            grown = <double*>realloc(self.scores, room * sizeof(double))
            if grown == NULL:
                raise OutOfMemory(f"no memory for {n} branches")
            self.scores = grown
            self.score_room = room
        if not branches_grow(&self.open, n):
            raise OutOfMemory(f"no memory for {n} branches")
        return 0

    cdef int score(self, index_t leaf, double logprob) except -1:
        """Note a complete choice; there is room for it."""
        cdef double value = policy_score(&self.policy, logprob, leaf)
        self.scores[self.n_scores] = value
        self.n_scores += 1
        if value > self.best or (value == self.best and leaf < self.leaf):
            self.best = value
            self.leaf = leaf
            self.logprob = logprob
        return 0

    cdef int note(
        self, Cursor cursor, const row_t* row, const token_t* ids, index_t n
    ) except -1:
        """Keep what the ids have among each other, for explanations."""
        cdef bytes values = PyBytes_FromStringAndSize(NULL, n * sizeof(double))
        cdef Cursor at = cursor_make(self.bound)
        at.p = cursor.p
        row_logprobs(row, ids, n, False, <double*>PyBytes_AS_STRING(values))
        self.weighed.append((at, values))
        return 0

    def reveal(self, Cursor cursor not None, row, point, double base):
        """Take in the logits at one point: complete choices and new branches.

        Parameters
        ----------
        cursor : Cursor
            The constraint there. Like all others given here, it comes from one cursor
            by copies and accepted ids.
        row : ndarray
            The logits.
        point : object
            What the new branches shall lead on from, for the caller.
        base : float
            The likelihood of the ids so far.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0, i
        cdef double ends = -INFINITY, value
        cdef bint ended = False
        cdef Py_buffer view
        cdef row_t r
        cdef pos_t at
        cdef const node_t* node
        cdef branch_t* branch
        cursor.ids(&ids, &n)
        self.room_for(n)
        row_open(row, 1, cursor.bound.b.trie.n_vocab, False, None, &view, &r)
        self.bound = cursor.bound
        try:
            if not row_logprobs(&r, ids, n, True, self.values):
                for i in range(n):
                    self.values[i] = -INFINITY
            elif n > 1:
                self.note(cursor, &r, ids, n)
        finally:
            PyBuffer_Release(&view)
        for i in range(n):
            value = self.values[i] + base
            at = cursor.p
            if pos_accept(&self.bound.b, &at, ids[i]) == STEP_DAMAGED:
                raise damaged()
            node = self.bound.b.trie.node + at.node
            if at.exit >= 0:  # one choice may end by several ids
                ended = True
                ends = log_add(ends, value)
            elif at.done:
                self.score(node.lo, value)
            elif value > -INFINITY:
                branch = self.open.data + self.open.n
                self.open.n += 1
                branch.logprob = branch.bound = branch.mass = value
                branch.at = at
                branch.token = ids[i]
                branch.point = len(self.points)
                branch.serial = self.serial
                self.serial += 1
                if is_plain(&self.policy):
                    continue
                branch.bound = policy_bound(&self.policy, value, node.lo, node.hi)
                # Likelihoods below a branch sum to at most its own; divided by lengths
                # they do not, so that there each leaf counts with the bound.
                branch.mass = branch.bound
                if self.policy.length != NULL:
                    branch.mass += log(
                        <double>live(&self.bound.b, node.lo, node.hi)
                    )
        if ended:
            self.score(self.bound.b.trie.node[cursor.p.node].lo, ends)
        self.points.append(point)

    def step(self, Cursor cursor not None, row):
        """Return the likelihood of the one id that may follow.

        Parameters
        ----------
        cursor : Cursor
            The constraint before it.
        row : ndarray
            The logits there.

        Returns
        -------
        float
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        cdef double value
        cdef Py_buffer view
        cdef row_t r
        cursor.ids(&ids, &n)
        row_open(row, 1, cursor.bound.b.trie.n_vocab, False, None, &view, &r)
        if not row_logprobs(&r, ids, 1, True, &value):
            value = -INFINITY
        PyBuffer_Release(&view)
        return value

    def prune(self):
        """Set the branches aside that cannot win any more."""
        cdef int64_t i, kept = 0
        cdef const branch_t* branch
        if not branches_grow(&self.idle, self.open.n):
            raise OutOfMemory(f"no memory for {self.open.n} branches")
        for i in range(self.open.n):
            branch = self.open.data + i
            if branch.bound > self.best or (
                branch.bound == self.best  # it may tie
                and self.bound.b.trie.node[branch.at.node].lo < self.leaf
            ):
                self.open.data[kept] = branch[0]
                kept += 1
            else:
                self.idle.data[self.idle.n] = branch[0]
                self.idle.n += 1
        self.open.n = kept

    cdef list handles(self):
        cdef list out = []
        cdef const branch_t* branch
        cdef Cursor cursor
        cdef int64_t i
        for i in range(self.taken.n):
            branch = self.taken.data + i
            cursor = cursor_make(self.bound)
            cursor.p = branch.at
            out.append(
                (branch.token, self.points[branch.point], cursor, branch.logprob)
            )
        return out

    def promising(self, double delta):
        """Remove and return the branches near the best bound, the best one first.

        Parameters
        ----------
        delta : float
            How far below it they may lie.

        Returns
        -------
        list of (int, object, Cursor, float)
            The id, the point that it leads on from, the constraint after it, and the
            likelihood of the ids up to it.
        """
        cdef double other = self.best
        cdef int64_t i
        if not branches_take(&self.open, delta, False, &self.taken):
            raise OutOfMemory("no memory for the branches of a batch")
        if self.taken.n > 1:
            other = max(other, self.taken.data[1].bound)
        else:
            for i in range(self.open.n):
                other = max(other, self.open.data[i].bound)
        self.lead = self.taken.data[0].bound - other
        self.top = self.taken.data[0].bound
        return self.handles()

    def one_more(self, double delta):
        """Remove and return the best branch that `promising` left, if it is near.

        Parameters
        ----------
        delta : float
            How far below the best bound, as it was then, it may lie.

        Returns
        -------
        list
            As that of `promising`, of one branch or none.
        """
        cdef int64_t i, at = -1
        cdef branch_t* open = self.open.data
        for i in range(self.open.n):
            if at < 0 or by_bound(open + i, open + at) < 0:
                at = i
        self.taken.n = 0
        if at >= 0 and open[at].bound >= self.top - delta:
            if not branches_grow(&self.taken, 1):
                raise OutOfMemory("no memory for the branches of a batch")
            self.taken.data[0] = open[at]
            self.taken.n = 1
            self.open.n -= 1
            memmove(open + at, open + at + 1, (self.open.n - at) * sizeof(branch_t))
        return self.handles()

    def weighty(self, double delta):
        """Remove and return the idle branches that could hold the most, the best first.

        Parameters and result are those of `promising`.
        """
        if not branches_take(&self.idle, delta, True, &self.taken):
            raise OutOfMemory("no memory for the branches of a batch")
        return self.handles()

    def share(self):
        """Return between what and what the best choice's share of all choices lies.

        Returns
        -------
        (float, float)
        """
        cdef double known = 0, rest
        cdef int64_t i
        for i in range(self.n_scores):
            known += exp(self.scores[i] - self.best)
        rest = branches_mass(&self.open, self.best)
        rest += branches_mass(&self.idle, self.best)
        return 1 / (known + rest), 1 / known


def forced_run(Cursor cursor not None):
    """Return the ids that are forced after a cursor, with the constraint after each.

    The last id of a choice is left out: nothing is to be decoded after it.

    Parameters
    ----------
    cursor : Cursor
        Not moved.

    Returns
    -------
    list of (int, Cursor)
    """
    cdef const token_t* ids = NULL
    cdef index_t n = 0
    cdef Cursor at = cursor, after
    cdef list out = []
    while True:
        at.ids(&ids, &n)
        if n != 1 or at.p.done:
            return out
        after = cursor_make(at.bound)
        after.p = at.p
        if pos_accept(&at.bound.b, &after.p, ids[0]) == STEP_DAMAGED:
            raise damaged()
        if after.p.done:
            return out
        out.append((ids[0], after))
        at = after


def path_counts(Cursor cursor not None, tokens):
    """Count the points on a path that were decided, and the ids that were forced.

    Parameters
    ----------
    cursor : Cursor
        At the beginning of the path; not moved.
    tokens : sequence of int
        The path, which the cursor allows.

    Returns
    -------
    (int, int)
        An end that had to be told from a continuation counts as decided.
    """
    cdef const token_t* ids = NULL
    cdef index_t n = 0, forced = 0
    cdef Cursor at = cursor_make(cursor.bound)
    at.p = cursor.p
    for token in tokens:
        at.ids(&ids, &n)
        forced += n == 1
        if pos_accept(&at.bound.b, &at.p, token) == STEP_DAMAGED:
            raise damaged()
    return len(tokens) - forced + (not at.p.done), forced


cdef inline bint is_plain(const policy_t* policy) noexcept nogil:
    return policy.length == NULL and policy.prior == NULL and policy.weight == NULL


cdef double log_add(double a, double b) noexcept nogil:
    cdef double top = max(a, b)
    return top if top == -INFINITY else top + log(exp(a - top) + exp(b - top))
