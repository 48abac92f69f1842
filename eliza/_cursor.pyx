"""Walking a trie under a constraint."""

cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc

from cpython.buffer cimport (
    PyBUF_WRITABLE,
    Py_buffer,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from ._arrays cimport doubles_new, ints_copy, ints_new, ints_view
from ._bound cimport Bound
from ._check cimport damaged
from ._ingest cimport id_of, plain_int
from ._logits cimport row_argmax, row_logprobs, row_mask, words_set
from ._position cimport (
    STEP_DAMAGED,
    STEP_OFF,
    live,
    path_copy,
    pos_accept,
    pos_completes,
    pos_force,
    pos_gather,
    pos_length,
    pos_reset,
    pos_rollback,
    pos_room,
    pos_span,
    pos_t,
    step_t,
)
from ._rows cimport row_open, row_t, words_open
from ._sample cimport (
    bit_generator_of,
    bitgen_of,
    bitgen_t,
    ids_sample,
    options_read,
    options_t,
)
from ._types cimport index_t, node_t, token_t

from enum import StrEnum

from .errors import (
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    OffPathError,
    OutOfMemory,
)

__all__ = ["Cursor", "State"]

cdef object KEY = object()   # what only this module can give to a constructor

cdef enum:
    SHOWN_IDS = 8            # how many ids a message lists


class State(StrEnum):
    """Where a cursor is: at the root, inside of a choice, or at its end."""

    ARMED = "ARMED"
    INSIDE = "INSIDE"
    DONE = "DONE"


cdef object ARMED_STATE = State.ARMED
cdef object INSIDE_STATE = State.INSIDE
cdef object DONE_STATE = State.DONE


cdef str show(object ids):
    """Write ids for a message, the first few of many."""
    cdef str text = ", ".join([str(id) for id in ids[:SHOWN_IDS]])
    return text if len(ids) <= SHOWN_IDS else f"{text}, ... ({len(ids)} in all)"


@cython.no_gc  # can be in no cycle, and copies are 10 ns cheaper
@cython.auto_pickle(False)
cdef class Cursor:
    """One walk through the choices of a trie; made by `Trie.cursor`.

    A cursor starts at the root and constrains at once. `accept` moves it, along the
    ids of a choice, until it is `done`. Every id that `allowed` lists can be accepted
    and no other; after an error the position is what it was.

    A position is 16 bytes: copying and taking back are cheap. A cursor belongs to one
    generation and one thread at a time; the trie behind it may be shared by many.
    """

    def __cinit__(self, key=None):
        if key is not KEY:
            raise InvalidType("cursors are made by Trie.cursor()")
        pos_reset(&self.p)

    def __dealloc__(self):
        free(self.scratch)

    cdef int ids(self, const token_t** ids, index_t* n) except -1:
        cdef index_t room
        cdef token_t* grown
        if pos_span(&self.bound.b, &self.p, ids, n):
            return 0
        room = pos_room(&self.bound.b, &self.p)
        if room > self.room:
            grown = <token_t*>realloc(self.scratch, room * sizeof(token_t))
            if grown == NULL:
                raise OutOfMemory(f"no memory for {room} ids")
            self.scratch = grown
            self.room = room
        ids[0] = self.scratch
        n[0] = pos_gather(&self.bound.b, &self.p, self.scratch)
        return 0

    cdef int open_ids(self, const token_t** ids, index_t* n) except -1:
        if self.p.done:
            raise NoCandidateError("the choice is complete: no id follows it")
        return self.ids(ids, n)

    @property
    def trie(self):
        """The `Trie` that the cursor walks through."""
        return self.bound.trie

    @property
    def state(self):
        """`State.ARMED` at the root, `State.DONE` at the end, else `State.INSIDE`."""
        if self.p.done:
            return DONE_STATE
        return INSIDE_STATE if self.p.depth else ARMED_STATE

    @property
    def done(self):
        """bool: the choice is complete."""
        return bool(self.p.done)

    @property
    def leaf(self):
        """int or None: the number of the complete choice."""
        if not self.p.done:
            return None
        return self.bound.b.trie.node[self.p.node].lo

    @property
    def name(self):
        """str or None: the name of the complete choice, if the trie has names."""
        return self.bound.trie.name(self.leaf) if self.p.done else None

    @property
    def depth(self):
        """int: how many ids were accepted, an exit id included."""
        return pos_length(&self.p)

    @property
    def path(self):
        """tuple of int: the accepted ids, an exit id included."""
        cdef bytes ids = PyBytes_FromStringAndSize(NULL, self.p.depth * sizeof(token_t))
        path_copy(
            self.bound.b.trie, self.p.node, 0, self.p.depth,
            <token_t*>PyBytes_AS_STRING(ids),
        )
        path = tuple(ints_view(ids).tolist())
        return path if self.p.exit < 0 else (*path, self.p.exit)

    @property
    def leaf_range(self):
        """(int, int): the leaves [lo, hi) that start with the path.

        Those that `allow` forbids count too; when done it is the one leaf.
        """
        cdef const node_t* n = self.bound.b.trie.node + self.p.node
        return (n.lo, n.lo + 1 if self.p.done else n.hi)

    def remaining(self):
        """Return how many permitted choices are still possible.

        Returns
        -------
        int
            At least 1; 1 when done.
        """
        cdef const node_t* n = self.bound.b.trie.node + self.p.node
        return 1 if self.p.done else live(&self.bound.b, n.lo, n.hi)

    @cython.critical_section
    def allowed(self):
        """Return the ids that may follow.

        Returns
        -------
        ndarray of int32, shape (n,)
            Sorted, unique, a copy; empty when done.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        self.ids(&ids, &n)
        return ints_copy(ids, n)

    @cython.critical_section
    def forced(self):
        """Return the run of ids that can only go one way from here.

        It stops before a point where the choice may also end: an exit is not forced.

        Returns
        -------
        ndarray of int32, shape (n,)
            Read-only; empty where there is a choice, and when done.
        """
        cdef pos_t end = self.p
        cdef bytes ids
        if not pos_force(&self.bound.b, &end):
            raise damaged()
        ids = PyBytes_FromStringAndSize(
            NULL, (end.depth - self.p.depth) * sizeof(token_t)
        )
        path_copy(
            self.bound.b.trie, end.node, self.p.depth, end.depth,
            <token_t*>PyBytes_AS_STRING(ids),
        )
        return ints_view(ids)

    @cython.critical_section
    def completes(self):
        """Return for each allowed id the choice that it completes.

        Returns
        -------
        ndarray of int32, shape (n,)
            Aligned with `allowed`: a leaf number, or -1 where ids must follow.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        cdef bint whole
        cdef Py_buffer view
        self.ids(&ids, &n)
        out = ints_copy(ids, n)
        PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
        whole = pos_completes(&self.bound.b, &self.p, ids, n, <token_t*>view.buf)
        PyBuffer_Release(&view)
        if not whole:
            raise damaged()
        return out

    @cython.critical_section
    def accept(self, id):
        """Go on by one id.

        Parameters
        ----------
        id : int
            One of `allowed`.

        Raises
        ------
        OffPathError
            The id is not allowed here; the position is unchanged.
        InvalidArgument
            It is no int, or outside of the vocabulary; the position is unchanged.
        """
        cdef token_t token = id_of(id, self.bound.b.trie.n_vocab, "accept", None, -1)
        cdef step_t step = pos_accept(&self.bound.b, &self.p, token)
        if step == STEP_OFF:
            raise off_path(self, token)
        if step == STEP_DAMAGED:
            raise damaged()

    @cython.critical_section
    def rollback(self, n=1):
        """Take back the ids accepted last.

        Parameters
        ----------
        n : int
            How many, from 0 to `depth`.

        Raises
        ------
        InvalidArgument
            `n` is no int or outside of that; the position is unchanged.
        """
        cdef object count = plain_int(n, "rollback: n")
        if not 0 <= count <= pos_length(&self.p):
            raise InvalidArgument(
                f"rollback: {count} is outside [0, {pos_length(&self.p)}]"
            )
        pos_rollback(&self.bound.b, &self.p, count)

    @cython.critical_section
    def reset(self):
        """Go back to the root.
        """
        pos_reset(&self.p)

    @cython.critical_section
    def copy(self):
        """Return a cursor at the same position; the two then go separate ways.

        Returns
        -------
        Cursor
        """
        cdef Cursor other = cursor_make(self.bound)
        other.p = self.p
        return other

    @cython.critical_section
    def argmax(self, logits, dtype=None):
        """Return the allowed id with the highest logit.

        Logits of other ids are not read. NaN and -inf never win, +inf does.

        Parameters
        ----------
        logits : buffer of float32, float16 or bfloat16, shape (n,)
            A row, at least `Trie.n_vocab` long; it may have gaps.
        dtype : {None, "bfloat16"}
            "bfloat16" if the row holds its bits as uint16.

        Returns
        -------
        int
            Of equal ones the lowest id.

        Raises
        ------
        NoCandidateError
            Each allowed logit is NaN or -inf, or the choice is complete.
        InvalidArgument
            The row has another type or shape.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        cdef Py_buffer view
        cdef row_t row
        cdef int64_t best
        self.open_ids(&ids, &n)
        row_open(
            logits, 1, self.bound.b.trie.n_vocab, False, dtype, &view, &row
        )
        best = row_argmax(&row, ids, n)
        PyBuffer_Release(&view)
        if best < 0:
            raise no_candidate(ids, n)
        return ids[best]

    def sample(
        self, logits, rng, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, dtype=None
    ):
        """Draw one of the allowed ids.

        The filters work over the allowed ids, in the order of the parameters.

        Parameters
        ----------
        logits : buffer of float32, float16 or bfloat16, shape (n,)
            A row, as in `argmax`. NaN counts as -inf; where there is +inf, such ids
            share the whole probability.
        rng : numpy.random.Generator or BitGenerator
            Gives one double if two or more ids are left, else it is not used.
        temperature : float
            Divides the logits; finite. 0 takes the argmax.
        top_k : int
            Keep the k most probable ids, ties to the lowest id; 0 keeps all.
        top_p : float
            Keep the fewest most probable ids that together reach this share of what is
            left; in (0, 1].
        min_p : float
            Drop ids less probable than this times the most probable one; in [0, 1].
        dtype : {None, "bfloat16"}
            "bfloat16" if the row holds its bits as uint16.

        Returns
        -------
        int

        Raises
        ------
        NoCandidateError
            Each allowed logit is NaN or -inf, or the choice is complete.
        InvalidArgument
            An option is out of range; the row has another type or shape.
        """
        cdef options_t options
        cdef bitgen_t* bits
        options_read(&options, temperature, top_k, top_p, min_p)
        source = bit_generator_of(rng)
        bits = bitgen_of(source)
        # The generator's lock first: waiting for it must not let go of the cursor.
        with source.lock:
            with cython.critical_section(self):
                return sample_one(self, logits, dtype, &options, bits)

    @cython.critical_section
    def mask(self, logits, dtype=None):
        """Put -inf, in place, at every id that is not allowed, and in the padding.

        Parameters
        ----------
        logits : writable buffer of float32, float16 or bfloat16, shape (n,)
            A row, at least `Trie.n_vocab` long; it may have gaps. Allowed logits keep
            their bits.
        dtype : {None, "bfloat16"}
            "bfloat16" if the row holds its bits as uint16.

        Raises
        ------
        NoCandidateError
            The choice is complete; the row is unchanged.
        InvalidArgument
            The row has another type or shape, or cannot be written to.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        cdef Py_buffer view
        cdef row_t row
        self.open_ids(&ids, &n)
        row_open(
            logits, 1, self.bound.b.trie.n_vocab, True, dtype, &view, &row
        )
        row_mask(&row, ids, n)
        PyBuffer_Release(&view)

    @cython.critical_section
    def bitmask(self, out=None):
        """Write the allowed ids as bits: bit i % 32 of word i // 32 stands for id i.

        This is the mask that xgrammar, llguidance and the engines around them take.

        Parameters
        ----------
        out : writable buffer of int32, shape (n_words,), optional
            At least ceil(Trie.n_vocab / 32) words without gaps; those beyond become 0.
            A new array by default.

        Returns
        -------
        ndarray of int32, shape (n_words,), or `out`

        Raises
        ------
        NoCandidateError
            The choice is complete; `out` is unchanged.
        InvalidArgument
            `out` has another type or shape, or cannot be written to.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        cdef Py_buffer view
        self.open_ids(&ids, &n)
        if out is None:
            out = ints_new((self.bound.b.trie.n_vocab + 31) // 32)
        words_open(out, 1, self.bound.b.trie.n_vocab, &view)
        words_set(<uint32_t*>view.buf, view.shape[0], ids, n)
        PyBuffer_Release(&view)
        return out

    @cython.critical_section
    def logprobs(self, logits, whole_row=False, dtype=None):
        """Return the log probabilities of the allowed ids.

        Parameters
        ----------
        logits : buffer of float32, float16 or bfloat16, shape (n,)
            A row, at least `Trie.n_vocab` long; it may have gaps. NaN counts as -inf;
            where there is +inf, such ids share the whole probability.
        whole_row : bool
            Whether to normalise over all ids below `Trie.n_vocab`, not only over the
            allowed ones.
        dtype : {None, "bfloat16"}
            "bfloat16" if the row holds its bits as uint16.

        Returns
        -------
        ndarray of float64, shape (n,)
            Aligned with `allowed`.

        Raises
        ------
        NoCandidateError
            Each allowed logit is NaN or -inf, or the choice is complete.
        InvalidArgument
            The row has another type or shape.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        cdef Py_buffer view, target
        cdef row_t row
        cdef bint usable
        self.open_ids(&ids, &n)
        out = doubles_new(n)
        PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
        try:
            row_open(
                logits, 1, self.bound.b.trie.n_vocab, False, dtype, &view, &row
            )
            usable = row_logprobs(&row, ids, n, whole_row, <double*>target.buf)
            PyBuffer_Release(&view)
        finally:
            PyBuffer_Release(&target)
        if not usable:
            raise no_candidate(ids, n)
        return out

    def __repr__(self):
        return (
            f"<Cursor {self.state} after {self.depth} ids, "
            f"{self.remaining()} leaves possible>"
        )


cdef object sample_one(
    Cursor cursor, object logits, object dtype, const options_t* options, bitgen_t* bits
):
    cdef const token_t* ids = NULL
    cdef index_t n = 0
    cdef int64_t drawn
    cursor.open_ids(&ids, &n)
    drawn = ids_sample(
        logits, dtype, cursor.bound.b.trie.n_vocab, ids, n, options, bits
    )
    if drawn < 0:
        raise no_candidate(ids, n)
    return drawn


cdef object off_path(Cursor cursor, token_t id):
    after = f"after ({show(cursor.path)})" if cursor.p.depth else "at the start"
    if cursor.p.done:
        return OffPathError(f"id {id} is not allowed {after}: the choice is complete")
    return OffPathError(
        f"id {id} is not allowed {after}; allowed: {show(cursor.allowed().tolist())}"
    )


cdef object no_candidate(const token_t* ids, index_t n):
    return NoCandidateError(
        "every allowed id has a logit of NaN or -inf: "
        + show(ints_copy(ids, n).tolist())
    )


cdef Cursor cursor_make(Bound bound):
    cdef Cursor cursor = Cursor.__new__(Cursor, KEY)
    cursor.bound = bound
    return cursor
