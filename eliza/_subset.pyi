from typing import Never, final

import numpy as np
from numpy.typing import NDArray

from eliza._trie import Trie

__all__ = ["Subset"]

@final
class Subset:
    def __new__(cls, key: Never = ...) -> Subset: ...
    def __len__(self) -> int: ...
    @property
    def trie(self) -> Trie: ...
    @property
    def nbytes(self) -> int: ...
    def leaves(self) -> NDArray[np.int32]: ...
