from collections.abc import Iterable
from typing import Any, Never, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray

from eliza._pieces import Pieces
from eliza._spelling_cursor import SpellingCursor
from eliza._subset import Subset

__all__ = ["SpellingCursor", "Spellings"]

_Ints = NDArray[np.integer[Any]]
_Ids = Iterable[SupportsIndex] | _Ints
_Allow = NDArray[np.bool_] | _Ints | Iterable[str] | Iterable[SupportsIndex] | Subset

@final
class Spellings:
    def __new__(cls, key: Never = ...) -> Spellings: ...
    @staticmethod
    def from_texts(
        pieces: Pieces,
        names: Iterable[str],
        *,
        lead: bytes = b"",
        suffix: bytes = b"",
        exits: _Ids = (),
    ) -> Spellings: ...
    def __len__(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def needs_exits(self) -> bool: ...
    def name(self, leaf: SupportsIndex) -> str: ...
    def subset(self, allow: _Allow) -> Subset: ...
    def cursor(
        self, exits: _Ids | None = (), allow: _Allow | None = None
    ) -> SpellingCursor: ...
