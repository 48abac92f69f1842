"""What every hook takes: a trie, how a choice ends, and what may follow it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eliza._cursor import Cursor
from eliza._trie import Trie
from eliza.errors import InvalidArgument, InvalidType

__all__ = ["Start", "end_ids_of"]


class Start:
    """Where each generation starts.

    Parameters
    ----------
    trie : Trie or Cursor
        The choices; of a cursor, those that are left at its position.
    eog : int, iterable of int, Vocab, tokenizer, or llama_cpp.Llama
        The ids that end a generation.
    exits : iterable of int, optional
        What ends a choice that others continue; by default `eog`, where the trie has
        no exit ids of its own.
    allow : optional
        Which choices are permitted, as in `Trie.cursor`.
    after : {"end", "free"}
        What may follow the choice: ids of `eog` only, or anything.

    Attributes
    ----------
    cursor : Cursor
        At the start; it is copied, not moved.
    ends : ndarray of int32
        Sorted.
    free : bool
    """

    __slots__ = ("cursor", "ends", "free")

    def __init__(
        self,
        trie: Trie | Cursor,
        *,
        eog: Any = None,
        exits: Iterable[int] | None = None,
        allow: Any = None,
        after: str = "end",
    ) -> None:
        if after not in ("end", "free"):
            raise InvalidArgument(f'after is {after!r}; it is "end" or "free"')
        ends = end_ids_of(eog)
        if isinstance(trie, Cursor):
            if exits is not None or allow is not None:
                raise InvalidArgument(
                    "exits= and allow= go with a trie; a cursor has its own"
                )
            self.cursor = trie.copy()
        elif isinstance(trie, Trie):
            if exits is None:
                exits = ends if trie.needs_exits else ()
            self.cursor = trie.cursor(exits=exits, allow=allow)
        else:
            raise InvalidType(f"give a Trie or a Cursor, not a {type(trie).__name__}")
        if after == "end" and not ends:
            raise InvalidArgument(
                'after="end" needs eog=, the ids that end a generation; or give '
                'after="free"'
            )
        n_vocab = self.cursor.trie.n_vocab
        wrong = [id for id in ends if not 0 <= id < n_vocab]
        if wrong:
            raise InvalidArgument(f"eog: id {wrong[0]} is outside [0, {n_vocab})")
        self.ends: NDArray[np.int32] = np.array(sorted(set(ends)), np.int32)
        self.free = after == "free"


def end_ids_of(eog: Any) -> tuple[int, ...]:
    """Return the end-of-generation ids that something stands for.

    Parameters
    ----------
    eog : None, int, iterable of int, Vocab, llama_cpp.Llama, or a tokenizer
        A tokenizer has `eos_token_ids` or `eos_token_id`, and so has a generation
        config.
    """
    if eog is None:
        return ()
    if hasattr(eog, "_model") and hasattr(eog, "create_completion"):
        from eliza.hooks.llama import end_ids

        return end_ids(eog)
    for name in ("eog", "eos_token_ids", "eos_token_id"):
        if (found := getattr(eog, name, None)) is not None:
            eog = found
            break
    if isinstance(eog, (int, np.integer)) and not isinstance(eog, bool):
        return (int(eog),)
    if isinstance(eog, (str, bytes)) or not isinstance(eog, Iterable):
        raise InvalidType(
            f"eog is {eog!r}; give ids, a Vocab, a tokenizer or a llama_cpp.Llama"
        )
    ids = list(eog)
    for id in ids:
        if isinstance(id, bool) or not isinstance(id, (int, np.integer)):
            raise InvalidType(f"eog holds {id!r}, which is no id")
    return tuple(int(id) for id in ids)
