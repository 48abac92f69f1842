import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Never, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from eliza._cursor import Cursor
from eliza._subset import Subset
from eliza.cache import TrieCache
from eliza.vocab import Vocab

__all__ = ["Trie", "from_arrays_with_order"]

_Ints = NDArray[np.integer[Any]]
_Ids = Iterable[SupportsIndex] | _Ints
_Allow = NDArray[np.bool_] | _Ints | Iterable[str] | Iterable[SupportsIndex] | Subset

@final
class Trie:
    def __new__(cls, key: Never = ...) -> Trie: ...
    @staticmethod
    def from_tokens(
        leaves: Mapping[str, _Ids] | Iterable[tuple[str, _Ids]],
        *,
        n_vocab: SupportsIndex,
        exits: _Ids | Mapping[str, _Ids] | None = None,
        fingerprint: bytes = b"",
    ) -> Trie: ...
    @staticmethod
    def from_arrays(
        tokens: _Ints | Sequence[int],
        offsets: _Ints | Sequence[int],
        names: Iterable[str] | None = None,
        *,
        n_vocab: SupportsIndex,
        exits: _Ids | Mapping[int, _Ids] | None = None,
        fingerprint: bytes = b"",
    ) -> Trie: ...
    @staticmethod
    def from_texts(
        vocab: Vocab,
        texts: Sequence[str],
        prefix: str = "",
        suffix: str = "",
        cache: TrieCache | None = None,
    ) -> Trie: ...
    @staticmethod
    def from_bytes(data: Buffer) -> Trie: ...
    @staticmethod
    def open(path: str | os.PathLike[str]) -> Trie: ...
    def to_bytes(self) -> bytes: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def verify(self) -> None: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __copy__(self) -> Trie: ...
    def __deepcopy__(self, memo: object) -> Trie: ...
    def __len__(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...] | None: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_nodes(self) -> int: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def needs_exits(self) -> bool: ...
    @property
    def fingerprint(self) -> bytes: ...
    def name(self, leaf: SupportsIndex) -> str | None: ...
    def tokens(self, leaf: SupportsIndex) -> tuple[int, ...]: ...
    def exits(self, leaf: SupportsIndex) -> tuple[int, ...]: ...
    def subset(self, allow: _Allow) -> Subset: ...
    def cursor(
        self, exits: _Ids | None = (), allow: _Allow | None = None
    ) -> Cursor: ...

def from_arrays_with_order(
    tokens: _Ints | Sequence[int],
    offsets: _Ints | Sequence[int],
    names: Iterable[str] | None,
    n_vocab: SupportsIndex,
    exits: _Ids | Mapping[int, _Ids] | None = None,
    fingerprint: bytes = b"",
) -> tuple[Trie, NDArray[np.int32]]: ...
