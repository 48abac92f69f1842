from typing import Any, Literal

from numpy.typing import NDArray
from typing_extensions import Buffer

__all__ = ["log_sum_exp"]

def log_sum_exp(
    row: Buffer | NDArray[Any], dtype: Literal["bfloat16"] | None = None
) -> float: ...
