"""What a session needs of the model that opened it, and what it hands to callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eliza.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from eliza.cache import TrieCache
    from eliza.chat import ChatTemplate
    from eliza.locking import ModelLock
    from eliza.state.slots import Identity
    from eliza.step import Counters

__all__ = ["FRONTIER", "Frontier", "Host", "check_limit"]

#: Frontiers of a prefill lie at multiples of it, wherever the prefill began.
FRONTIER = 512


class Host(NamedTuple):
    """What a session needs of the model that opened it.

    Attributes
    ----------
    lock : ModelLock
        Held during each call.
    check : callable
        Called before each piece of work; may raise to interrupt it.
    chat : ChatTemplate or None
        Writes messages.
    cache : TrieCache
        Keeps the tries of payloads.
    model_id : str
        What payloads are checked against.
    identity : callable
        Given a digest of choices, says what saved state is tied to.
    on_close : callable
        Called with the session's counters, once.
    """

    lock: ModelLock
    check: Callable[[], None]
    chat: ChatTemplate | None
    cache: TrieCache
    model_id: str
    identity: Callable[[str], Identity]
    on_close: Callable[[Counters], None]


class Frontier(NamedTuple):
    """A point of a prefill at which the timeline is whole.

    Attributes
    ----------
    current : int
        How many ids the session holds.
    total : int
        How many it will hold.
    save_slot : callable
        `Session.save_slot`; nothing else of the session may be called here.
    """

    current: int
    total: int
    save_slot: Callable[[str | os.PathLike[str]], None]


def check_limit(value: Any) -> int | None:
    """Return max_tokens, after checking it."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"max_tokens is {value!r}; it is a whole number, or None")
    if value < 0:
        raise InvalidArgument(f"max_tokens is {value}; it must be 0 or more, or None")
    return value
