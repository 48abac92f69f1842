"""Walking the spellings of texts under a constraint."""

cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from cpython.buffer cimport (
    PyBUF_WRITABLE,
    Py_buffer,
    PyBuffer_Release,
    PyObject_GetBuffer,
)

from ._arrays cimport doubles_new, ints_copy, ints_new, ints_view
from ._cursor cimport no_candidate, show
from ._ingest cimport Ids, id_of, plain_int
from ._logits cimport row_argmax, row_logprobs, row_mask, words_set
from ._position cimport pos_reset, pos_t
from ._rows cimport row_open, row_t, words_open
from ._sample cimport (
    bit_generator_of,
    bitgen_of,
    bitgen_t,
    ids_sample,
    options_read,
    options_t,
)
from ._spell cimport (
    marks_take,
    spell_accept,
    spell_completes,
    spell_leaf,
    spell_mark,
    spell_may_exit,
    spell_possible,
    spell_rollback,
    spell_t,
)
from ._types cimport index_t, token_t

from ._cursor import State
from .errors import (
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    OffPathError,
    OutOfMemory,
)

__all__ = ["SpellingCursor"]

cdef object KEY = object()   # what only this module can give to a constructor
cdef object ARMED_STATE = State.ARMED
cdef object INSIDE_STATE = State.INSIDE
cdef object DONE_STATE = State.DONE


@cython.auto_pickle(False)
cdef class SpellingBound:
    pass


@cython.auto_pickle(False)
cdef class SpellingCursor:
    """One walk through the spellings of some texts; made by `Spellings.cursor`.

    It has the verbs of `eliza.Cursor` and keeps the same promises: it constrains at
    once, every id that `allowed` lists can be accepted and no other, and after an error
    the position is what it was.

    A cursor belongs to one generation and one thread at a time.
    """

    def __cinit__(self, key=None):
        if key is not KEY:
            raise InvalidType("cursors are made by Spellings.cursor()")
        pos_reset(&self.p)

    def __dealloc__(self):
        free(self.scratch.bits)
        free(self.scratch.stack)
        free(self.path_ids)
        free(self.list)

    cdef int look(self, const pos_t* at) except -1:
        cdef int64_t n
        cdef token_t* grown
        self.fresh = False
        with nogil:
            n = spell_mark(&self.bound.s, at, &self.scratch)
        if n < 0:
            raise OutOfMemory("no memory to find the allowed ids")
        if n > self.list_room:
            grown = <token_t*>realloc(self.list, n * sizeof(token_t))
            if grown == NULL:
                free(self.scratch.bits)  # its marks would be taken for others
                self.scratch.bits = NULL
                raise OutOfMemory(f"no memory for {n} ids")
            self.list = grown
            self.list_room = n
        if n:
            marks_take(&self.scratch, self.bound.s.pieces.n_vocab, self.list)
        self.n_list = n
        return 0

    cdef int ids(self) except -1:
        if not self.fresh:
            self.look(&self.p)
            self.fresh = True
        return 0

    cdef int open_ids(self) except -1:
        if self.p.done:
            raise NoCandidateError("the choice is complete: no id follows it")
        return self.ids()

    cdef int reserve_path(self, index_t room) except -1:
        cdef token_t* grown
        if room <= self.path_room:
            return 0
        room = max(room, 2 * self.path_room)
        grown = <token_t*>realloc(self.path_ids, room * sizeof(token_t))
        if grown == NULL:
            raise OutOfMemory(f"no memory for a path of {room} ids")
        self.path_ids = grown
        self.path_room = room
        return 0

    @property
    def spellings(self):
        """The `Spellings` that the cursor walks through."""
        return self.bound.owner

    @property
    def state(self):
        """`State.ARMED` at the root, `State.DONE` at the end, else `State.INSIDE`."""
        if self.p.done:
            return DONE_STATE
        return INSIDE_STATE if self.n_path else ARMED_STATE

    @property
    def done(self):
        """bool: the choice is complete."""
        return bool(self.p.done)

    @property
    def leaf(self):
        """int or None: the number of the complete choice."""
        return spell_leaf(&self.bound.s, &self.p) if self.p.done else None

    @property
    def name(self):
        """str or None: the text of the complete choice."""
        return self.bound.owner.name(self.leaf) if self.p.done else None

    @property
    def depth(self):
        """int: how many ids were accepted, an exit id included."""
        return self.n_path

    @property
    def path(self):
        """tuple of int: the accepted ids, an exit id included."""
        return tuple(ints_copy(self.path_ids, self.n_path).tolist())

    def remaining(self):
        """Return how many permitted choices are still possible.

        Returns
        -------
        int
            At least 1; 1 when done.
        """
        cdef index_t leaf
        if self.p.done:
            return 1
        return spell_possible(
            &self.bound.s, self.p.node, self.p.depth, 0xFFFFFFFF, &leaf
        )

    @cython.critical_section
    def allowed(self):
        """Return the ids that may follow.

        Returns
        -------
        ndarray of int32, shape (n,)
            Sorted, unique, a copy; empty when done.
        """
        self.ids()
        return ints_copy(self.list, self.n_list)

    @cython.critical_section
    def forced(self):
        """Return the run of ids that can only go one way from here.

        It stops before a point where the choice may also end: an exit is not forced.
        As the bytes of one id can often be spelled by several, runs are short here.

        Returns
        -------
        ndarray of int32, shape (n,)
            Read-only; empty where there is a choice, and when done.
        """
        cdef const spell_t* s = &self.bound.s
        cdef pos_t at = self.p
        cdef Ids run = Ids()
        self.ids()
        while self.n_list == 1 and not spell_may_exit(s, &at):
            run.reserve(1)
            run.data[run.n] = self.list[0]
            run.n += 1
            spell_accept(s, &at, self.list[0])
            self.look(&at)
        return ints_view((<char*>run.data)[:run.n * sizeof(token_t)])

    @cython.critical_section
    def completes(self):
        """Return for each allowed id the choice that it completes.

        Returns
        -------
        ndarray of int32, shape (n,)
            Aligned with `allowed`: a leaf number, or -1 where ids must follow.
        """
        cdef Py_buffer view
        self.ids()
        out = ints_copy(self.list, self.n_list)
        PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
        with nogil:
            spell_completes(
                &self.bound.s, &self.p, self.list, <index_t>self.n_list,
                <token_t*>view.buf,
            )
        PyBuffer_Release(&view)
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
        cdef token_t token = id_of(id, self.bound.s.pieces.n_vocab, "accept", None, -1)
        self.reserve_path(self.n_path + 1)
        if not spell_accept(&self.bound.s, &self.p, token):
            raise off_path(self, token)
        self.path_ids[self.n_path] = token
        self.n_path += 1
        self.fresh = False

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
        cdef index_t kept
        if not 0 <= count <= self.n_path:
            raise InvalidArgument(
                f"rollback: {count} is outside [0, {self.n_path}]"
            )
        kept = self.n_path - <index_t>count
        spell_rollback(
            &self.bound.s, &self.p, self.path_ids + kept, self.n_path - kept
        )
        self.n_path = kept
        self.fresh = False

    @cython.critical_section
    def reset(self):
        """Go back to the root.
        """
        pos_reset(&self.p)
        self.n_path = 0
        self.fresh = False

    @cython.critical_section
    def copy(self):
        """Return a cursor at the same position; the two then go separate ways.

        Returns
        -------
        SpellingCursor
        """
        cdef SpellingCursor other = spelling_cursor(self.bound)
        if self.n_path:
            other.reserve_path(self.n_path)
            memcpy(other.path_ids, self.path_ids, self.n_path * sizeof(token_t))
        other.n_path = self.n_path
        other.p = self.p
        return other

    @cython.critical_section
    def argmax(self, logits, dtype=None):
        """Return the allowed id with the highest logit.

        Logits of other ids are not read. NaN and -inf never win, +inf does.

        Parameters
        ----------
        logits : buffer of float32, float16 or bfloat16, shape (n,)
            A row, at least `Spellings.n_vocab` long; it may have gaps.
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
        cdef Py_buffer view
        cdef row_t row
        cdef int64_t best
        self.open_ids()
        row_open(
            logits, 1, self.bound.s.pieces.n_vocab, False, dtype, &view, &row
        )
        best = row_argmax(&row, self.list, <index_t>self.n_list)
        PyBuffer_Release(&view)
        if best < 0:
            raise no_candidate(self.list, <index_t>self.n_list)
        return self.list[best]

    def sample(
        self, logits, rng, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, dtype=None
    ):
        """Draw one of the allowed ids; see `Cursor.sample`.

        Parameters
        ----------
        logits : buffer of float32, float16 or bfloat16, shape (n,)
            A row, as in `argmax`.
        rng : numpy.random.Generator or BitGenerator
            Gives one double if two or more ids are left, else it is not used.
        temperature, top_k, top_p, min_p
            Filters over the allowed ids, in this order.
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
            A row, at least `Spellings.n_vocab` long; it may have gaps. Allowed logits
            keep their bits.
        dtype : {None, "bfloat16"}
            "bfloat16" if the row holds its bits as uint16.

        Raises
        ------
        NoCandidateError
            The choice is complete; the row is unchanged.
        InvalidArgument
            The row has another type or shape, or cannot be written to.
        """
        cdef Py_buffer view
        cdef row_t row
        self.open_ids()
        row_open(
            logits, 1, self.bound.s.pieces.n_vocab, True, dtype, &view, &row
        )
        row_mask(&row, self.list, <index_t>self.n_list)
        PyBuffer_Release(&view)

    @cython.critical_section
    def bitmask(self, out=None):
        """Write the allowed ids as bits: bit i % 32 of word i // 32 stands for id i.

        Parameters
        ----------
        out : writable buffer of int32, shape (n_words,), optional
            At least ceil(Spellings.n_vocab / 32) words without gaps; those beyond
            become 0. A new array by default.

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
        cdef Py_buffer view
        self.open_ids()
        if out is None:
            out = ints_new((self.bound.s.pieces.n_vocab + 31) // 32)
        words_open(out, 1, self.bound.s.pieces.n_vocab, &view)
        words_set(
            <uint32_t*>view.buf, view.shape[0], self.list, <index_t>self.n_list
        )
        PyBuffer_Release(&view)
        return out

    @cython.critical_section
    def logprobs(self, logits, whole_row=False, dtype=None):
        """Return the log probabilities of the allowed ids, for this one step.

        Their sum along a path is the likelihood of one spelling. That of a choice, over
        all its spellings, is not defined here.

        Parameters
        ----------
        logits : buffer of float32, float16 or bfloat16, shape (n,)
            A row, at least `Spellings.n_vocab` long; it may have gaps. NaN counts as
            -inf; where there is +inf, such ids share the whole probability.
        whole_row : bool
            Whether to normalise over all ids below `Spellings.n_vocab`, not only over
            the allowed ones.
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
        cdef Py_buffer view, target
        cdef row_t row
        cdef index_t n
        cdef bint usable
        self.open_ids()
        n = <index_t>self.n_list
        out = doubles_new(n)
        PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
        try:
            row_open(
                logits, 1, self.bound.s.pieces.n_vocab, False, dtype, &view, &row
            )
            usable = row_logprobs(&row, self.list, n, whole_row, <double*>target.buf)
            PyBuffer_Release(&view)
        finally:
            PyBuffer_Release(&target)
        if not usable:
            raise no_candidate(self.list, n)
        return out

    def __repr__(self):
        return (
            f"<SpellingCursor {self.state} after {self.depth} ids, "
            f"{self.remaining()} texts possible>"
        )


cdef object off_path(SpellingCursor cursor, token_t id):
    after = f"after ({show(cursor.path)})" if cursor.n_path else "at the start"
    if cursor.p.done:
        return OffPathError(f"id {id} is not allowed {after}: the choice is complete")
    return OffPathError(
        f"id {id} is not allowed {after}; allowed: {show(cursor.allowed().tolist())}"
    )


cdef SpellingCursor spelling_cursor(SpellingBound bound):
    cdef SpellingCursor cursor = SpellingCursor.__new__(SpellingCursor, KEY)
    cursor.bound = bound
    return cursor


cdef object sample_one(
    SpellingCursor cursor, object logits, object dtype, const options_t* options,
    bitgen_t* bits,
):
    cdef int64_t drawn
    cursor.open_ids()
    drawn = ids_sample(
        logits, dtype, cursor.bound.s.pieces.n_vocab, cursor.list,
        <index_t>cursor.n_list, options, bits,
    )
    if drawn < 0:
        raise no_candidate(cursor.list, <index_t>cursor.n_list)
    return drawn
