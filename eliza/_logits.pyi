from typing import Any, Literal

from numpy.typing import NDArray
from typing_extensions import Buffer

__all__ = ["log_sum_exp"]

_Array = Buffer | NDArray[Any]

def log_sum_exp(row: _Array, dtype: Literal["bfloat16"] | None = None) -> float: ...
