from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["LlamaBatch", "read_ids"]

def read_ids(ids: object, n_vocab: int) -> NDArray[np.int32] | None: ...

@final
class LlamaBatch:
    def __new__(
        cls, n_batch: int, decode: int = 0, get_logits_ith: int = 0
    ) -> LlamaBatch: ...
    @property
    def address(self) -> int: ...
    @property
    def layout(self) -> dict[str, int]: ...
    def chain(
        self,
        ids: NDArray[np.int32],
        first: int,
        owner: int,
        all_rows: bool,
    ) -> None: ...
    def tree(
        self,
        ids: NDArray[np.int32],
        depths: list[int],
        first: int,
        owners: list[list[int]],
    ) -> None: ...
    def decode(self, context: int) -> int: ...
    def row_at(self, context: int, i: int) -> int: ...
    def contents(self) -> list[tuple[Any, ...]]: ...
