from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex, final

import numpy as np
from numpy.typing import NDArray

from eliza._trie import Trie

__all__ = ["Recipe"]

_Ids = Iterable[SupportsIndex] | NDArray[np.integer[Any]]

@final
class Recipe:
    def __new__(
        cls,
        leaves: Mapping[str, _Ids] | Iterable[tuple[str, _Ids]],
        n_vocab: SupportsIndex,
        exits: _Ids | Mapping[str, _Ids] | None = None,
        fingerprint: bytes = b"",
        origin: tuple[str, ...] = (),
    ) -> Recipe: ...
    @property
    def key(self) -> bytes: ...
    def build(self) -> Trie: ...
