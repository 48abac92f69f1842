"""A link for the sampler chains of llama.cpp; it needs no Python at a token.

    from eliza.hooks.llama import Link, chain

    with chain(Link(trie, eog=llama), temperature=0.7) as sampler:
        while not sampler.link.done:
            llama.eval([sampler.sample(llama)])

The constraint comes before anything that cuts down the candidates: a mask after top-k,
top-p or min-p can leave nothing.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from eliza import _chain, _llama_api, _sampler
from eliza._cursor import Cursor
from eliza._trie import Trie
from eliza.errors import Closed, InvalidArgument, InvalidType, OutOfMemory
from eliza.hooks._library import library
from eliza.hooks._start import Start

__all__ = ["Chain", "Link", "Penalties", "chain", "end_ids"]

_MODES = {0: "greedy", 1: "sample", "greedy": "greedy", "sample": "sample"}

#: Below it, logits divided by the temperature may become infinite.
_COLDEST = 1e-6


class Link(_sampler.Link):
    """A `llama_sampler` that keeps to the choices of a trie.

    Its callbacks run without the GIL and without Python. What goes wrong there is noted
    and raised by `check`, by `Chain.sample`, and by whatever else asks the link
    something; until then it lets no candidate through: all have a logit of -inf and
    none is selected.

    Parameters
    ----------
    trie : Trie or Cursor
        The choices; of a cursor, those that are left at its position, to which `reset`
        goes back.
    mode : {"greedy", "sample"} or {0, 1}
        Both put -inf on what is not allowed. "greedy", 0, also selects the highest,
        ties to the lowest id; "sample", 1, leaves the draw to the links after it.
    after : {"end", "free"}
        What may follow the choice: end-of-generation ids only, or anything.
    eog : int, iterable of int, Vocab or llama_cpp.Llama
        The ids that end a generation; needed for ``after="end"``.
    exits : iterable of int, optional
        What ends a choice that others continue; by default `eog`, where the trie has
        no exit ids of its own.
    allow : optional
        Which choices are permitted, as in `Trie.cursor`.

    Raises
    ------
    AbiMismatch
        The installed llama.cpp has other structs than eliza knows.

    Notes
    -----
    A link is freed with this object until it is in a chain, and then with the chain:
    `alive` and `owned` tell. `clone` keeps the position and shares the trie. One link
    belongs to one generation and one thread at a time.
    """

    def __new__(
        cls,
        trie: Trie | Cursor,
        *,
        mode: int | str = "greedy",
        after: str = "end",
        eog: Any = None,
        exits: Iterable[int] | None = None,
        allow: Any = None,
    ) -> Link:
        """Make a link, in no chain yet."""
        library()
        if isinstance(mode, bool) or mode not in _MODES:
            raise InvalidArgument(
                f'mode is {mode!r}; it is "greedy" (0) or "sample" (1)'
            )
        start = Start(trie, eog=eog, exits=exits, allow=allow, after=after)
        return super().__new__(
            cls, start.cursor, _MODES[mode] == "greedy", start.free, start.ends
        )

    def add_to(self, chain: Any) -> None:
        """Add the link to a chain, which frees it from then on.

        Parameters
        ----------
        chain : int, ctypes pointer, or an object with `sampler` or `pointer`
            A sampler chain of llama.cpp.

        Raises
        ------
        InvalidArgument
            A link of the chain cuts down the candidates, or draws.
        """
        self.give_to(_address(chain))

    def remove_from(self, chain: Any) -> None:
        """Take the link out of a chain; it is freed with this object again."""
        self.take_from(_address(chain))


class Penalties(NamedTuple):
    """Penalties for ids that came before; see llama.cpp."""

    repeat: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    last_n: int = 64


class Chain(_chain.Chain):
    """A whole sampler chain with one link of ours, made by `chain`.

    It frees all its links. Its links get the allowed candidates only, so a token takes
    a microsecond, whatever the vocabulary. `clone`, `reset`, `accept`, `check` and
    `close` do what they say; it is a context manager.
    """

    def sample(self, context: Any, idx: int = -1) -> int:
        """Draw an id from the logits of a context, and accept it.

        Parameters
        ----------
        context : llama_cpp.Llama, or the address of a llama_context
        idx : int
            Which of its outputs; -1 is the last.

        Raises
        ------
        NoCandidateError
            No allowed id has a logit above -inf. Nothing has changed.
        """
        return super().sample(_address(context), idx)


def chain(
    link: _sampler.Link,
    *,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    penalties: Penalties | Mapping[str, float] | None = None,
    logit_bias: Mapping[int, float] | None = None,
) -> Chain:
    """Build a sampler chain around a link, in the order that keeps the constraint.

    Bias and penalties, then the link, then temperature, top-k, top-p and min-p over
    what is left, then the draw.

    Parameters
    ----------
    link : Link
        In no chain yet. With ``mode="greedy"`` it ends the chain, and no option for a
        draw may be given.
    temperature : float, optional
        1 by default; 0 takes the highest.
    top_k, top_p, min_p
        As in `Cursor.sample`.
    seed : int, optional
        Of the draw; another one each time by default.
    penalties : Penalties or mapping, optional
        They count ids that were sampled or accepted here.
    logit_bias : mapping of int to float, optional
        Added to logits; -inf forbids an id.

    Returns
    -------
    Chain
        It owns the link.
    """
    if not isinstance(link, _sampler.Link):
        raise InvalidType(f"give a Link, not a {type(link).__name__}")
    lib = library()
    n_vocab = link.cursor.trie.n_vocab
    before = [
        *_bias(lib, n_vocab, logit_bias),
        *_penalties(lib, n_vocab, penalties),
    ]
    draw = _draw(lib, link, temperature, top_k, top_p, min_p, seed)
    pointer = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    if not pointer:
        raise OutOfMemory("no memory for a sampler chain")
    address = _address(pointer)
    try:
        for make in before:
            lib.llama_sampler_chain_add(pointer, make())
        link.give_to(address)
    except BaseException:
        lib.llama_sampler_free(pointer)
        raise
    for make in draw:
        lib.llama_sampler_chain_add(pointer, make())
    return Chain(address, link)


def _bias(lib: Any, n_vocab: int, bias: Mapping[int, float] | None) -> list[Any]:
    if not bias:
        return []
    pairs = (lib.llama_logit_bias * len(bias))()
    for pair, (token, value) in zip(pairs, bias.items(), strict=True):
        if isinstance(token, bool) or not isinstance(token, int):
            raise InvalidType(f"logit_bias: {token!r} is no id")
        if not 0 <= token < n_vocab:
            raise InvalidArgument(f"logit_bias: id {token} is outside [0, {n_vocab})")
        if math.isnan(value):
            raise InvalidArgument(f"logit_bias: NaN for id {token}")
        pair.token, pair.bias = token, value
    return [lambda: lib.llama_sampler_init_logit_bias(n_vocab, len(pairs), pairs)]


def _penalties(
    lib: Any, n_vocab: int, given: Penalties | Mapping[str, float] | None
) -> list[Any]:
    if given is None:
        return []
    try:
        p = given if isinstance(given, Penalties) else Penalties(**given)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidType(
            f"penalties: give any of {', '.join(Penalties._fields)}"
        ) from error
    if not (0 < p.repeat < math.inf):
        raise InvalidArgument(f"penalties: repeat is {p.repeat}; it is above 0")
    if not (math.isfinite(p.frequency) and math.isfinite(p.presence)):
        raise InvalidArgument("penalties: frequency and presence must be finite")
    if type(p.last_n) is not int or not 0 <= p.last_n < 1 << 31:
        raise InvalidArgument(f"penalties: last_n is {p.last_n!r}; it is 0 or more")
    return [
        lambda: lib.llama_sampler_init_penalties(
            n_vocab, p.last_n, p.repeat, p.frequency, p.presence
        )
    ]


def _draw(
    lib: Any,
    link: _sampler.Link,
    temperature: float | None,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
) -> list[Any]:
    """Return makers of the links after ours."""
    if link.mode == "greedy":
        if (temperature, top_k, top_p, min_p, seed) != (None, 0, 1.0, 0.0, None):
            raise InvalidArgument(
                'the link\'s mode is "greedy", which leaves nothing to draw: give it '
                'mode="sample", or no temperature, top_k, top_p, min_p and seed'
            )
        return []
    if temperature is None:
        temperature = 1.0
    if not 0 <= temperature < math.inf:
        raise InvalidArgument(
            f"temperature must be finite and not negative, got {temperature}"
        )
    if 0 < temperature < _COLDEST:
        raise InvalidArgument(
            f"temperature is {temperature}; below {_COLDEST} logits become infinite: "
            "give 0 for the highest"
        )
    if type(top_k) is not int or not 0 <= top_k < 1 << 31:
        raise InvalidArgument(f"top_k is {top_k!r}; it is 0 or more")
    if not 0 < top_p <= 1:
        raise InvalidArgument(f"top_p must lie in (0, 1], got {top_p}")
    if not 0 <= min_p <= 1:
        raise InvalidArgument(f"min_p must lie in [0, 1], got {min_p}")
    if seed is None:
        seed = lib.LLAMA_DEFAULT_SEED
    if type(seed) is not int or not 0 <= seed < 1 << 32:
        raise InvalidArgument(f"seed is {seed!r}; it lies in [0, 2**32)")
    if temperature == 0:
        return [lib.llama_sampler_init_greedy]
    out = [lambda: lib.llama_sampler_init_temp(temperature)]
    if top_k:
        out.append(lambda: lib.llama_sampler_init_top_k(top_k))
    if top_p < 1:
        out.append(lambda: lib.llama_sampler_init_top_p(top_p, 1))
    if min_p > 0:
        out.append(lambda: lib.llama_sampler_init_min_p(min_p, 1))
    return [*out, lambda: lib.llama_sampler_init_dist(seed)]


_ends: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()


def end_ids(llama: Any) -> tuple[int, ...]:
    """Return the end-of-generation ids of a model.

    Parameters
    ----------
    llama : llama_cpp.Llama

    Raises
    ------
    Closed
        The model was freed.
    """
    library()
    if llama._model.model is None:  # its vocabulary's address stays behind
        raise Closed("the llama_cpp.Llama is closed")
    found = _ends.get(llama)
    if found is None:
        found = _ends[llama] = _llama_api.end_ids(_address(llama._model.vocab))
    return found


def _address(thing: Any) -> int:
    """Return the address that a pointer holds, or that an object is around."""
    for name in ("pointer", "sampler", "ctx"):
        if hasattr(thing, name):
            thing = getattr(thing, name)
            break
    if isinstance(thing, int) and not isinstance(thing, bool):
        return thing
    if thing is None:
        return 0
    try:
        return int(ctypes.cast(thing, ctypes.c_void_p).value or 0)
    except (ctypes.ArgumentError, TypeError) as error:
        raise InvalidType(
            f"a {type(thing).__name__} is no pointer of llama.cpp, nor around one"
        ) from error
