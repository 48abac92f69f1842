"""Chains of llama.cpp's samplers, for Python; see `eliza.hooks.llama`."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free, realloc

from ._ingest cimport id_of, plain_int
from ._link cimport link_ids, link_is_free, link_t, links_sweep
from ._llama_api cimport (
    chain_at,
    llama,
    llama_sampler,
    llama_token_data,
    llama_token_data_array,
    name_of,
    place_in,
)
from ._sampler cimport Link, adopt
from ._types cimport index_t, token_t

from .errors import BackendError, Closed, InvalidArgument, OutOfMemory

__all__ = ["Chain"]


cdef class Chain:
    """A chain of samplers with one link of ours, and the owner of both.

    Made by `eliza.hooks.llama.chain`. It samples from the allowed ids only: links get
    as many candidates as there are allowed ids, not the whole vocabulary.
    """

    def __cinit__(self, chain, Link link not None):
        cdef llama_sampler* at = chain_at(chain)
        if place_in(at, link.sampler) < 0:
            raise InvalidArgument("the link is not in that chain")
        self.chain = at
        self.link = link

    def __dealloc__(self):
        if self.chain != NULL:
            llama.sampler_free(self.chain)
        free(self.data)

    cdef int must_live(self) except -1:
        if self.chain == NULL:
            raise Closed("the chain is closed")
        self.link.must_live()
        return 0

    @property
    def pointer(self):
        """int: the address of the chain; it must not be freed."""
        self.must_live()
        return <uintptr_t>self.chain

    @property
    def closed(self):
        """bool: the chain was freed."""
        return self.chain == NULL

    @property
    def names(self):
        """tuple of str: the names of the links, in order."""
        self.must_live()
        return tuple(
            [
                name_of(llama.chain_get(self.chain, i))
                for i in range(llama.chain_n(self.chain))
            ]
        )

    @cython.critical_section
    def sample(self, context, idx=-1):
        """Draw an id from the logits of a context, and accept it.

        Parameters
        ----------
        context : int
            The address of a `llama_context` that has decoded something.
        idx : int
            Which of its outputs, as in `llama_get_logits_ith`.

        Returns
        -------
        int

        Raises
        ------
        NoCandidateError
            No allowed id has a logit above -inf. Nothing has changed.
        """
        cdef void* at = <void*><uintptr_t>context
        cdef int32_t which = plain_int(idx, "idx")
        cdef const float* logits
        cdef int32_t n_vocab
        self.must_live()
        if at == NULL:
            raise Closed("the context is closed")
        with nogil:              # it waits for the computation
            logits = llama.get_logits_ith(at, which)
            n_vocab = llama.vocab_n_tokens(llama.model_get_vocab(llama.get_model(at)))
        self.must_live()
        if logits == NULL:
            raise BackendError(f"the context has no logits for output {idx}")
        return self.draw(logits, n_vocab)

    @cython.critical_section
    def sample_row(self, const float[::1] logits not None):
        """Draw an id from a row of logits, and accept it.

        Parameters
        ----------
        logits : contiguous buffer of float32, shape (n_vocab,)

        Returns
        -------
        int
        """
        self.must_live()
        if logits.shape[0] > 0x7FFFFFFF or logits.shape[0] == 0:
            raise InvalidArgument(f"a row of {logits.shape[0]} logits")
        return self.draw(&logits[0], <int32_t>logits.shape[0])

    cdef object draw(self, const float* logits, int32_t n_vocab):
        cdef link_t* link = self.link.link
        cdef token_t n_ids = link.shared.b.trie.n_vocab
        cdef llama_token_data_array cur
        cdef llama_sampler* smpl
        cdef const token_t* ids = NULL
        cdef index_t n = <index_t>n_vocab, k
        cdef int32_t i
        cdef token_t id
        cdef bint bound = False
        if n_vocab != n_ids:
            raise InvalidArgument(
                f"the trie is for {n_ids} ids and the model has {n_vocab}: build "
                "it for this model"
            )
        self.link.raise_error()
        if not link_is_free(link) and not link_ids(link, &ids, &n):
            self.link.raise_error()
        self.reserve(n)
        for k in range(n):
            id = <token_t>k if ids == NULL else ids[k]
            self.data[k].id = id
            self.data[k].logit = logits[id]
            self.data[k].p = 0
        cur.data = self.data
        cur.size = n
        cur.selected = -1
        cur.sorted = False
        # One by one: after an error no later link draws from its random state.
        for i in range(llama.chain_n(self.chain)):
            smpl = llama.chain_get(self.chain, i)
            bound = bound or smpl == self.link.sampler
            if smpl.iface.apply != NULL:
                smpl.iface.apply(smpl, &cur)
            self.link.raise_error()
        if not bound:
            raise InvalidArgument("the link was taken out of this chain")
        if not 0 <= cur.selected < <int64_t>cur.size:
            raise BackendError(
                "no link of the chain has selected a token: the last one must"
            )
        id = cur.data[cur.selected].id
        self.accept_everywhere(id)
        return id

    cdef int reserve(self, size_t n) except -1:
        cdef void* grown
        if n > self.room:
            grown = realloc(self.data, n * sizeof(llama_token_data))
            if grown == NULL:
                raise OutOfMemory(f"no memory for {n} candidates")
            self.data = <llama_token_data*>grown
            self.room = n
        return 0

    cdef int accept_everywhere(self, token_t id) except -1:
        cdef llama_sampler* ours = self.link.sampler
        cdef llama_sampler* smpl
        cdef int32_t i
        llama.sampler_accept(ours, id)   # first: it may refuse
        self.link.raise_error()
        for i in range(llama.chain_n(self.chain)):
            smpl = llama.chain_get(self.chain, i)
            if smpl != ours:
                llama.sampler_accept(smpl, id)
        return 0

    @cython.critical_section
    def accept(self, id):
        """Go on by an id that was not sampled here, such as a forced one.

        Raises
        ------
        OffPathError
            It is not allowed. Nothing has changed, in any link.
        """
        self.must_live()
        self.link.raise_error()
        self.accept_everywhere(
            id_of(id, self.link.link.shared.b.trie.n_vocab, "accept", None, -1)
        )

    @cython.critical_section
    def reset(self):
        """Go back to the beginning: the link to its start, the others as they do."""
        self.must_live()
        llama.sampler_reset(self.chain)

    def check(self):
        """Raise what a callback met; see `Link.check`."""
        self.must_live()
        self.link.check()

    @cython.critical_section
    def clone(self):
        """Return a chain at the same position, with random states of the same kind.

        Returns
        -------
        Chain

        Raises
        ------
        InvalidArgument
            The link was taken out of the chain.
        """
        cdef llama_sampler* copy
        cdef int32_t i
        self.must_live()
        self.link.raise_error()
        i = place_in(self.chain, self.link.sampler)
        if i < 0:
            raise InvalidArgument("the link was taken out of this chain")
        copy = llama.sampler_clone(self.chain)
        try:
            link = adopt(type(self.link), llama.chain_get(copy, i))
            return type(self)(<uintptr_t>copy, link)
        except BaseException:
            llama.sampler_free(copy)
            raise

    @cython.critical_section
    def close(self):
        """Free the chain and its links; may be called twice."""
        if self.chain != NULL:
            llama.sampler_free(self.chain)
            self.chain = NULL
        links_sweep()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
