"""What eliza means, in plain Python: the oracle of the tests, and a place to start.

A set of choices is a mapping from a name to the token ids that spell it. A span starts
at the empty path. At each step some ids may follow; one of them is taken; when a choice
is complete the span is done. Everything the compiled code does must agree with this.

>>> ref = Reference({"go": [7], "go on": [7, 8]}, exits=[2])
>>> sorted(ref.allowed((7,)))       # "go on" goes on; id 2 says that "go" was meant
[2, 8]
>>> ref.leaf((7, 2)), ref.leaf((7, 8)), ref.leaf((7,))
('go', 'go on', None)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Path", "Reference"]

Path = tuple[int, ...]
Row = Sequence[float]


class Reference:
    """A set of choices and the rules of a constrained span.

    Parameters
    ----------
    leaves : mapping of str to sequence of int
        The ids of each choice; none is empty and no two are equal.
    exits : iterable of int
        Ids that end a choice which is the beginning of another.
    leaf_exits : mapping of str to iterable of int, optional
        The same for single choices, added to `exits`.
    """

    def __init__(
        self,
        leaves: Mapping[str, Sequence[int]],
        exits: Iterable[int] = (),
        leaf_exits: Mapping[str, Iterable[int]] | None = None,
    ) -> None:
        self.name_of = {tuple(ids): name for name, ids in leaves.items()}
        own = leaf_exits or {}
        self.exits_of = {
            path: set(exits) | set(own.get(name, ()))
            for path, name in self.name_of.items()
        }

    def _next(self, path: Path) -> set[int]:
        n = len(path)
        return {ids[n] for ids in self.name_of if len(ids) > n and ids[:n] == path}

    def allowed(self, path: Path) -> set[int]:
        """Return the ids that may follow `path`; none when the span is done."""
        if self.leaf(path) is not None:
            return set()
        following = self._next(path)
        return following | self.exits_of[path] if path in self.name_of else following

    def leaf(self, path: Path) -> str | None:
        """Return the choice that `path` completes.

        A choice that nothing continues is complete at its last id; one that others
        continue is complete after an exit id.
        """
        if path in self.name_of and not self._next(path):
            return self.name_of[path]
        before = path[:-1]
        if before in self.name_of and path[-1] in self.exits_of[before]:
            return self.name_of[before]
        return None

    def forced(self, path: Path) -> Path:
        """Return the ids that can only go one way from `path`."""
        run: Path = ()
        while len(only := self.allowed(path + run)) == 1:
            if path + run in self.name_of:  # an exit is not forced on anyone
                break
            run += tuple(only)
        return run

    def argmax(self, path: Path, row: Row) -> int | None:
        """Return the allowed id with the highest logit, ties to the lowest id.

        NaN and -inf never win, whatever stands at the other ids.
        """
        usable = [i for i in sorted(self.allowed(path)) if row[i] > -math.inf]
        return max(usable, key=lambda i: row[i], default=None)

    def mask(self, path: Path, row: Row) -> list[float]:
        """Return the row with -inf at each id that is not allowed."""
        allowed = self.allowed(path)
        return [x if i in allowed else -math.inf for i, x in enumerate(row)]

    def logprobs(
        self, path: Path, row: Row, whole_row: bool = False
    ) -> dict[int, float]:
        """Return log-softmax values of the allowed ids, within them or over the row.

        NaN counts as -inf. Ids at +inf share the whole probability.
        """
        ids = sorted(self.allowed(path))
        over = row if whole_row else [row[i] for i in ids]
        infinite = sum(x == math.inf for x in over)
        if infinite:
            share = -math.log(infinite)
            return {i: share if row[i] == math.inf else -math.inf for i in ids}
        norm = log_sum_exp(over)
        return {i: row[i] - norm if row[i] > -math.inf else -math.inf for i in ids}

    def scores(
        self, logits: Callable[[Path], Row], whole: bool = False
    ) -> dict[str, float]:
        """Return the log score of each choice.

        Masked (the default): the product of the probabilities renormalised over the
        allowed ids at each point, which sums to 1 over the choices. Whole: the model's
        own likelihood of all ids of the choice. The exit of a choice counts, over all
        its exit ids together, only where another choice goes on.
        """
        out = {}
        for ids, name in self.name_of.items():
            total = 0.0
            for n, token in enumerate(ids):
                total += self.logprobs(ids[:n], logits(ids[:n]), whole)[token]
            if self._next(ids):
                last = self.logprobs(ids, logits(ids), whole)
                total += log_sum_exp([last[i] for i in self.exits_of[ids]])
            out[name] = total
        return out

    def greedy(self, logits: Callable[[Path], Row]) -> Path:
        """Return the path that taking the argmax at each step leads to."""
        path: Path = ()
        while self.leaf(path) is None:
            token = self.argmax(path, logits(path))
            if token is None:
                raise ValueError(f"no allowed id has a usable logit after {path}")
            path += (token,)
        return path


def log_sum_exp(values: Iterable[float]) -> float:
    """Return log(sum(exp(v))), NaN counting as -inf, without overflow."""
    usable = [v for v in values if v > -math.inf]
    if not usable:
        return -math.inf
    top = max(usable)
    return top + math.log(sum(math.exp(v - top) for v in usable))
