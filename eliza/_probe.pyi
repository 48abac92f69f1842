from collections.abc import Iterable
from typing import Literal

from typing_extensions import Buffer

from eliza._cursor import Cursor

__all__ = ["candidate_rounds", "copy_rounds", "walk_rounds"]

def candidate_rounds(logits: Buffer, rounds: int, sampler: int = 0) -> int: ...
def copy_rounds(cursor: Cursor, rounds: int) -> int: ...
def walk_rounds(
    cursor: Cursor, ids: Iterable[int], rounds: int, back: Literal["one", "all", "copy"]
) -> int: ...
