from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["attributes", "flagged", "piece"]

def attributes(
    llama_vocab_get_attr: int, vocab: int, n_vocab: int
) -> NDArray[np.uint32]: ...
def piece(llama_token_to_piece: int, vocab: int, token: int) -> bytes: ...
def flagged(llama_vocab_is: int, vocab: int, n_vocab: int) -> NDArray[Any]: ...
