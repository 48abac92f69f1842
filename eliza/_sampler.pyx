"""Links in llama.cpp's sampler chains, for Python; see `eliza.hooks.llama`."""

cimport cython
from libc.stdint cimport int32_t, uintptr_t

from ._arrays cimport ints_copy
from ._bound cimport Bound
from ._check cimport damaged
from ._cursor cimport Cursor, cursor_make, no_candidate, show
from ._ingest cimport Ids, id_of, read_exits
from ._link cimport (
    LINK_DAMAGED,
    LINK_NO_CANDIDATES,
    LINK_NO_MEMORY,
    LINK_OFF_PATH,
    LINK_OK,
    link_error,
    link_ids,
    link_is_free,
    link_make,
    link_release,
    link_retain,
    link_t,
    links_sweep,
    shared_make,
    shared_t,
)
from ._llama_api cimport (
    chain_at,
    llama,
    llama_sampler,
    must_be_bound,
    place_in,
    truncating,
)
from ._types cimport index_t, token_t

from .errors import (
    Closed,
    ElizaError,
    InvalidArgument,
    NoCandidateError,
    OffPathError,
    OutOfMemory,
)

__all__ = ["Link"]

cdef object KEY = object()   # what only this module can give to a constructor


cdef class Link:
    """A `llama_sampler` that keeps to the choices of a trie.

    See `eliza.hooks.llama.Link`, which makes them.
    """

    def __cinit__(
        self, cursor, greedy=True, free_after=False, ends=(), *, key=None, **_options
    ):
        cdef Cursor at
        cdef Ids ids
        cdef shared_t* shared
        links_sweep()
        if key is KEY:
            return               # `adopt` fills it
        must_be_bound()
        at = cursor
        ids = read_exits(ends, at.bound.b.trie.n_vocab, "eog", None)
        shared = shared_make(
            at.bound, &at.bound.b, &at.p, ids.data, <index_t>ids.n, greedy, free_after
        )
        if shared == NULL:
            raise OutOfMemory("no memory for a link")
        self.sampler = link_make(shared, &shared.start)
        if self.sampler == NULL:
            raise OutOfMemory("no memory for a link")
        self.link = <link_t*>self.sampler.ctx
        link_retain(self.link)
        self.owned = True

    def __dealloc__(self):
        self.drop()

    cdef void drop(self) noexcept:
        if self.link == NULL:
            return
        if self.owned and self.link.alive:
            llama.sampler_free(self.sampler)
        link_release(self.link)
        self.link = NULL
        self.sampler = NULL
        links_sweep()

    cdef int must_live(self) except -1:
        if self.link == NULL:
            raise Closed("the link is closed")
        if not self.link.alive:
            raise Closed("the link was freed, with the chain that it was in")
        return 0

    cdef Cursor position(self):
        cdef Cursor cursor
        if self.link == NULL:
            raise Closed("the link is closed")
        cursor = cursor_make(<Bound>self.link.shared.bound)
        cursor.p = self.link.p
        return cursor

    cdef Cursor known(self):
        if self.link == NULL:
            raise Closed("the link is closed")
        self.raise_error()
        return self.position()

    cdef int raise_error(self) except -1:
        error = self.take_error()
        if error is not None:
            raise error
        return 0

    cdef object take_error(self):
        cdef link_error error = self.link.error
        cdef token_t id = self.link.error_id
        cdef Cursor cursor
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        if error == LINK_OK:
            return None
        self.link.error = LINK_OK
        cursor = self.position()
        if error == LINK_OFF_PATH:
            return self.off_path(cursor, id)
        if error == LINK_NO_CANDIDATES:
            return NoCandidateError("there are no candidates: the array is empty")
        if error == LINK_NO_MEMORY:
            return OutOfMemory("no memory to apply the link")
        if error == LINK_DAMAGED:
            return damaged()
        if cursor.p.done:
            what = "" if self.link.shared.free_after else "end-of-generation "
            return NoCandidateError(f"no {what}id has a logit above -inf")
        cursor.ids(&ids, &n)
        return no_candidate(ids, n)

    cdef object off_path(self, Cursor cursor, token_t id):
        cdef shared_t* shared = self.link.shared
        if cursor.p.done:
            ends = ints_copy(shared.ends, shared.n_ends).tolist()
            return OffPathError(
                f"id {id} is not allowed: the choice is complete, and only "
                f"end-of-generation ids may follow: {show(ends)}"
            )
        try:
            cursor.accept(id)
        except OffPathError as error:
            return error
        except ElizaError:
            pass
        return OffPathError(f"id {id} is not allowed: it is outside of the vocabulary")

    @property
    def pointer(self):
        """int: the address of the `llama_sampler`.

        Raises
        ------
        Closed
            It was freed.
        """
        self.must_live()
        return <uintptr_t>self.sampler

    @property
    def owned(self):
        """bool: the sampler is in no chain and is freed with this object."""
        return self.link != NULL and self.owned and self.link.alive

    @property
    def alive(self):
        """bool: the sampler exists, here or in a chain."""
        return self.link != NULL and bool(self.link.alive)

    @property
    def mode(self):
        """str: "greedy" or "sample"."""
        self.must_live()
        return "greedy" if self.link.shared.greedy else "sample"

    @property
    def after(self):
        """str: "end" or "free", what may follow the choice."""
        self.must_live()
        return "free" if self.link.shared.free_after else "end"

    @property
    def cursor(self):
        """Cursor: a new one at the position of the link."""
        return self.known()

    @property
    def done(self):
        """bool: the choice is complete."""
        return self.known().done

    @property
    def leaf(self):
        """int or None: the number of the complete choice."""
        return self.known().leaf

    @property
    def name(self):
        """str or None: the name of the complete choice, if the trie has names."""
        return self.known().name

    @property
    def depth(self):
        """int: how many ids of the choice were accepted, an exit id included."""
        return self.known().depth

    @property
    def path(self):
        """tuple of int: the ids accepted, an exit id included."""
        return self.known().path

    @cython.critical_section
    def allowed(self):
        """Return the ids that may follow.

        Returns
        -------
        ndarray of int32, shape (n,), or None
            Sorted; when the choice is complete the end-of-generation ids, or None,
            every id, with `after="free"`.
        """
        cdef const token_t* ids = NULL
        cdef index_t n = 0
        self.must_live()
        self.raise_error()
        if link_is_free(self.link):
            return None
        if not link_ids(self.link, &ids, &n):
            self.raise_error()
        return ints_copy(ids, n)

    @cython.critical_section
    def check(self):
        """Raise the error that a callback met, once; the position is what it was.

        What else asks the link something raises it as well: `done`, `leaf`, `name`,
        `depth`, `path`, `cursor`, `allowed`, `accept` and `clone`.

        Raises
        ------
        NoCandidateError
            No allowed candidate was left.
        OffPathError
            An id was accepted that is not allowed.
        Closed
            The sampler was freed.
        """
        self.must_live()
        self.raise_error()

    @cython.critical_section
    def accept(self, id):
        """Go on by one id, as llama.cpp does after it was sampled.

        Raises
        ------
        OffPathError
            It is not allowed; the position is unchanged.
        """
        self.must_live()
        self.raise_error()
        llama.sampler_accept(
            self.sampler,
            id_of(id, self.link.shared.b.trie.n_vocab, "accept", None, -1),
        )
        self.raise_error()

    @cython.critical_section
    def reset(self):
        """Go back to the start, and forget an error that was not raised.

        The start is the root, or where the cursor was that the link was made of.
        """
        self.must_live()
        llama.sampler_reset(self.sampler)

    @cython.critical_section
    def give_to(self, chain):
        """Add the link to a chain, which then owns it.

        Parameters
        ----------
        chain : int
            The address of the chain.

        Raises
        ------
        InvalidArgument
            A link of the chain leaves fewer candidates, so that ours would come too
            late; or ours is in a chain already.
        """
        cdef llama_sampler* to = chain_at(chain)
        self.must_live()
        if not self.owned:
            raise InvalidArgument("the link is in a chain already; clone it")
        name = truncating(to)
        if name is not None:
            raise InvalidArgument(
                f"the chain has {name}, after which the allowed ids may be gone: add "
                "the link before anything that cuts down the candidates"
            )
        llama.chain_add(to, self.sampler)
        self.owned = False

    @cython.critical_section
    def take_from(self, chain):
        """Take the link out of a chain: it is freed with this object again.

        Raises
        ------
        InvalidArgument
            It is not in that chain.
        """
        cdef llama_sampler* at = chain_at(chain)
        cdef int32_t i
        self.must_live()
        i = place_in(at, self.sampler)
        if i < 0:
            raise InvalidArgument("the link is not in that chain")
        llama.chain_remove(at, i)
        self.owned = True

    @cython.critical_section
    def clone(self):
        """Return a link at the same position; the two then go separate ways.

        Returns
        -------
        Link
            In no chain.
        """
        cdef Link other
        cdef llama_sampler* copy
        self.must_live()
        self.raise_error()
        copy = llama.sampler_clone(self.sampler)
        try:
            other = adopt(type(self), copy)
        except BaseException:
            llama.sampler_free(copy)
            raise
        other.owned = True
        return other

    @cython.critical_section
    def close(self):
        """Free the sampler if it is in no chain; may be called twice."""
        self.drop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        if self.link == NULL:
            return "<Link closed>"
        if not self.link.alive:
            return "<Link freed with its chain>"
        return f"<Link {self.mode}, {self.position()!r}>"


cdef Link adopt(type cls, llama_sampler* smpl):
    """Return a Link for a sampler of ours, which somebody else owns."""
    cdef Link link = Link.__new__(cls, None, key=KEY)
    if smpl.ctx == NULL:
        raise OutOfMemory("no memory for a clone of the link")
    link.sampler = smpl
    link.link = <link_t*>smpl.ctx
    link_retain(link.link)
    return link
