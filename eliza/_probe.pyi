from collections.abc import Iterable
from typing import Literal

from eliza._cursor import Cursor

__all__ = ["copy_rounds", "walk_rounds"]

def copy_rounds(cursor: Cursor, rounds: int) -> int: ...
def walk_rounds(
    cursor: Cursor, ids: Iterable[int], rounds: int, back: Literal["one", "all", "copy"]
) -> int: ...
