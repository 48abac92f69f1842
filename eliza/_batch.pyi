from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from eliza._cursor import Cursor

__all__ = ["argmax_batch", "bitmask_batch", "mask_batch"]

_Array = Buffer | NDArray[Any]
_DType = Literal["bfloat16"] | None

def argmax_batch(
    logits: _Array, cursors: Iterable[Cursor | None], dtype: _DType = None
) -> NDArray[np.int32]: ...
def mask_batch(
    logits: _Array, cursors: Iterable[Cursor | None], dtype: _DType = None
) -> None: ...
def bitmask_batch(out: _Array, cursors: Iterable[Cursor | None]) -> None: ...
