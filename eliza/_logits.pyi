from typing import Literal

from typing_extensions import Buffer

__all__ = ["log_sum_exp"]

def log_sum_exp(row: Buffer, dtype: Literal["bfloat16"] | None = None) -> float: ...
