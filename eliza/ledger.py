"""The committed timeline of a sequence, and the plan that brings it to a new prompt.

The caller always names the whole prompt; `plan_sync` decides what of the live timeline
stays and what is decoded. It is a pure function, so that all backends share its rules.
The timeline changes only after the backend has succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Ledger", "SyncPlan", "plan_sync"]


class SyncPlan(NamedTuple):
    """What to do so that the timeline becomes the prompt.

    Attributes
    ----------
    keep : int
        Ids of the live timeline that stay; the rest is truncated, and the prompt is
        decoded from here on. Nothing is to be done when it is the prompt's length.
    rewind : bool
        Something live is dropped, so that the generation number moves.
    """

    keep: int
    rewind: bool


def plan_sync(
    live: Sequence[int],
    prompt: Sequence[int],
    *,
    has_row: bool,
    can_truncate: bool = True,
) -> SyncPlan:
    """Plan how a live timeline becomes a prompt with the least decoding.

    Parameters
    ----------
    live : sequence of int
        The ids committed so far.
    prompt : sequence of int
        All ids that the timeline shall hold; not empty.
    has_row : bool
        Whether the logits after the last live id are at hand. Without them the last
        id of a prompt that is live as a whole is decoded again.
    can_truncate : bool
        Whether the runtime can drop ids from the end one by one; if not, a timeline
        that is not a prefix of the prompt is rebuilt from nothing.

    Returns
    -------
    SyncPlan
    """
    keep = common_prefix(live, prompt)
    if keep == len(prompt) and not (has_row and keep == len(live)):
        keep -= 1
    if keep < len(live) and not can_truncate:
        keep = 0
    return SyncPlan(keep, rewind=keep < len(live))


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Return how many ids two lists, or characters two texts, share at their start.

    Slices are compared, not single ids: a long prompt costs microseconds.
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Ledger:
    """The ids that the runtime holds, and a number that names their history.

    `(generation, position)` names exact content: extending keeps the generation, and
    every other change moves it.

    Attributes
    ----------
    ids : list of int
        The committed ids.
    generation : int
        Starts at 1.
    """

    __slots__ = ("generation", "ids")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.generation = 1

    @property
    def position(self) -> int:
        """The number of committed ids."""
        return len(self.ids)

    def cut(self, n: int) -> None:
        """Keep the first n ids."""
        if n < len(self.ids):
            del self.ids[n:]
            self.generation += 1

    def extend(self, ids: Sequence[int]) -> None:
        """Append ids that the backend has decoded."""
        self.ids.extend(ids)

    def replace(self, ids: Sequence[int]) -> None:
        """Hold other ids, which a saved state brought."""
        self.ids = list(ids)
        self.generation += 1
