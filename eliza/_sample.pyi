from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

__all__ = ["sample_row"]

def sample_row(
    logits: Buffer | NDArray[Any],
    rng: np.random.Generator | np.random.BitGenerator,
    n_vocab: SupportsIndex,
    temperature: float = 1.0,
    top_k: SupportsIndex = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    dtype: Literal["bfloat16"] | None = None,
) -> int: ...
