"""The choices of a payload, bound to a vocabulary and ready to be walked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eliza._trie import Trie
from eliza.errors import InvalidArgument, InvalidType
from eliza.payload import TokenTreePayload

if TYPE_CHECKING:
    from eliza._cursor import Cursor
    from eliza.cache import TrieCache
    from eliza.vocab import Vocab

__all__ = ["TokenTrie"]


class TokenTrie:
    """A trie, the cursor that a session moves over it, and what names both.

    Attributes
    ----------
    trie : Trie
        The choices.
    cursor : Cursor
        At the root when made. A choice that others continue ends with an
        end-of-generation id, unless its leaf has exit ids of its own.
    """

    __slots__ = ("_digest", "_exits", "cursor", "trie")

    def __init__(self, trie: Trie, exits: tuple[int, ...]) -> None:
        self.trie = trie
        self._exits = exits
        self._digest: str | None = None
        self.cursor: Cursor = trie.cursor(exits=exits)

    @classmethod
    def of(
        cls,
        payload: Any,
        path: str | None,
        vocab: Vocab,
        cache: TrieCache,
        model_id: str,
    ) -> TokenTrie:
        """Read a payload.

        Parameters
        ----------
        payload : bytes, str, TokenTreePayload or Trie
            JSON, RTKT, or what was read from it.
        path : str or None
            Which choices; needed where there are several.
        model_id : str
            The model that the payload must be for; "" for any.

        Raises
        ------
        InvalidArgument, InvalidType
            It cannot be read, is of another model or vocabulary, or has no such path.
        """
        if isinstance(payload, (bytes, bytearray, memoryview)):
            data = bytes(payload)
            if data.startswith(b"RTKT"):
                payload = TokenTreePayload.from_rtkt(data)
            else:
                payload = TokenTreePayload.from_json(data)
        elif isinstance(payload, str):
            payload = TokenTreePayload.from_json(payload)
        if isinstance(payload, TokenTreePayload):
            if model_id and payload.model_id:
                payload.check_model(model_id)
            trie = cache.get(payload, path=path, n_vocab=vocab.n_vocab)
        elif isinstance(payload, Trie):
            trie = payload
            if path is not None:
                raise InvalidArgument(f"path is {path!r}, but a Trie has no paths")
            if trie.n_vocab != vocab.n_vocab:
                raise InvalidArgument(
                    f"the trie is for {trie.n_vocab} ids and the model has "
                    f"{vocab.n_vocab}: build it for this model"
                )
            if trie.fingerprint and trie.fingerprint != vocab.fingerprint:
                raise InvalidArgument(
                    "the trie was built with another tokenizer: build it with this "
                    "model's vocab"
                )
        else:
            raise InvalidType(
                f"the token trie is a {type(payload).__name__}; give JSON or RTKT, a "
                "TokenTreePayload or a Trie"
            )
        return cls(trie, tuple(sorted(vocab.eog)))

    @property
    def digest(self) -> str:
        """SHA-256 of the leaves with their names, and of the exit ids."""
        if self._digest is None:
            import hashlib

            sha = hashlib.sha256(self.trie.to_bytes())
            sha.update(repr(self._exits).encode())
            self._digest = sha.hexdigest()
        return self._digest
