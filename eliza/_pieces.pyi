from collections.abc import Sequence
from typing import final

__all__ = ["Pieces"]

@final
class Pieces:
    def __new__(cls, texts: Sequence[bytes]) -> Pieces: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
