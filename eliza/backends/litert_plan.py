"""How to divide ids among signatures that each take a fixed number of them.

A call costs about as much as some ids do, and an id that only fills up a call costs as
much as any other. So few calls are made, and little is filled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

__all__ = ["Chunk", "divide"]

#: A call costs as much as this many ids: a pass over all weights, which is bound by
#: memory, against the arithmetic for one more id. Of SmolLM2 in int8 calls for 1, 8 and
#: 64 ids take 12, 16 and 53 ms.
_CALL = 12.0

#: What logits for an id cost beside it.
_ROW = 0.25

#: The size, and whether there are logits.
Size = tuple[int, bool]

#: An index into the sizes, and how many ids it takes; the rest is filled up.
Chunk = tuple[int, int]


def divide(
    n: int, room: int, sizes: Sequence[Size], all_rows: bool
) -> tuple[Chunk, ...]:
    """Return the calls that decode n ids at the least cost.

    Parameters
    ----------
    n : int
        At least 1.
    room : int
        How many ids fit into the context, those that only fill up included; at least n.
    sizes : sequence of (int, bool)
        For each signature how many ids it takes, and whether it gives logits. One of
        them takes 1 and gives logits.
    all_rows : bool
        Whether logits are needed for each id, or for the last one only.

    Returns
    -------
    tuple of (int, int)
        For each call the number of the signature and how many ids it gets; the last
        one gives logits, and with `all_rows` all do.
    """
    sizes = tuple(sizes)
    useful = [i for i, (_, rows) in enumerate(sizes) if rows or not all_rows]
    largest = max(useful, key=lambda i: sizes[i][0])
    size = sizes[largest][0]
    # What is far from the end goes in the largest calls.
    whole = max(0, n // size - 3)
    rest = n - whole * size
    ends = _divide(rest, min(room - whole * size, rest + size), sizes, all_rows)
    return ((largest, size),) * whole + ends


@lru_cache(maxsize=1024)
def _divide(
    n: int, room: int, sizes: tuple[Size, ...], all_rows: bool
) -> tuple[Chunk, ...]:
    # best[k]: the cost of the first k ids, and the last call of it. Only the very last
    # call may be filled up.
    best: list[tuple[float, Chunk | None]] = [(0.0, None)]
    for k in range(1, n + 1):
        last = k == n
        found: tuple[float, Chunk | None] = (float("inf"), None)
        for i, (size, rows) in enumerate(sizes):
            if not rows and (last or all_rows):
                continue
            price = _CALL + size * (1 + _ROW * rows)
            takes = [size] if size <= k else []
            if last and size > 1:
                takes = [m for m in range(1, min(size, n) + 1) if n - m + size <= room]
            for m in takes:
                cost = best[k - m][0] + price
                if cost < found[0]:
                    found = cost, (i, m)
        best.append(found)
    chunks: list[Chunk] = []
    k = n
    while k:
        chunk = best[k][1]
        assert chunk is not None  # one id at a time is always possible
        chunks.append(chunk)
        k -= chunk[1]
    return tuple(chunks[::-1])
