"""How the likelihood of a choice becomes its score, and what bounds a branch by it.

A whole likelihood is a sum over all ids of a choice, so that long and rare choices
score low. A policy corrects for that: it divides by a length, subtracts what the choice
scores without the input, or adds a weight of the caller's. `eliza._frontier` has how
well the choices below a branch can still score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eliza.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.choosing.choices import Choices

__all__ = ["PLAIN", "Policy", "log_weights", "make_policy"]


class Policy(NamedTuple):
    """Score = likelihood / length - prior + weight; what is None is left out.

    Attributes
    ----------
    length : ndarray of float64, shape (n_leaves,), or None
        What the likelihood of each leaf is divided by; 0 for leaves not permitted.
    prior : ndarray of float64, shape (n_leaves,), or None
        What is subtracted; inf for leaves not permitted.
    weight : ndarray of float64, shape (n_leaves,), or None
        What is added; -inf for leaves not permitted.
    """

    length: NDArray[np.float64] | None = None
    prior: NDArray[np.float64] | None = None
    weight: NDArray[np.float64] | None = None

    @property
    def plain(self) -> bool:
        """Whether scores are the likelihoods themselves."""
        return self.length is None and self.prior is None and self.weight is None

    @property
    def scale(self) -> float:
        """By how much scores lie closer together than likelihoods."""
        return 1.0 if self.length is None else float(self.length.max())

    def score(self, leaf: int, logprob: float) -> float:
        """Return the score of a leaf with this likelihood."""
        if self.length is not None:
            logprob /= float(self.length[leaf])
        if self.prior is not None:
            logprob -= float(self.prior[leaf])
        if self.weight is not None:
            logprob += float(self.weight[leaf])
        return logprob


PLAIN = Policy()


def make_policy(
    *,
    length: NDArray[np.float64] | None,
    prior: NDArray[np.float64] | None,
    weight: NDArray[np.float64] | None,
    permitted: NDArray[np.bool_] | None,
) -> Policy:
    """Make a policy of arrays over leaves, some of which are not permitted.

    What a leaf that is not permitted has must not loosen any bound.
    """
    if permitted is not None:
        if length is not None:
            length = np.where(permitted, length, 0.0)
        if prior is not None:
            prior = np.where(permitted, prior, math.inf)
        if weight is not None:
            weight = np.where(permitted, weight, -math.inf)
    return Policy(length, prior, weight)


def log_weights(given: Any, choices: Choices) -> NDArray[np.float64]:
    """Read `weights=`: a mapping from choices to log weights, or one for each.

    Returns
    -------
    ndarray of float64, shape (len(choices.values),)
        Choices that a mapping leaves out have 0.

    Raises
    ------
    InvalidType, InvalidArgument
        A wrong length, a key that is no choice, or a weight that is no finite number.
    """
    if isinstance(given, Mapping):
        out = np.zeros(len(choices.values))
        for i, (key, weight) in enumerate(given.items()):
            out[choices.find(key, f"weights, key {i},")] = _finite(weight, repr(key))
        return out
    values = list(given) if isinstance(given, Iterable) else None
    if values is None or isinstance(given, (str, bytes)):
        raise InvalidType(
            f"weights is {given!r}; give a mapping from choices to log weights, or one "
            "log weight for each choice"
        )
    if len(values) != len(choices.given):
        raise InvalidArgument(
            f"weights has {len(values)} entries for {len(choices.given)} choices"
        )
    out = np.zeros(len(choices.values))
    for i in reversed(range(len(values))):  # of a choice given twice, the first counts
        out[choices.given[i]] = _finite(values[i], str(i))
    return out


def _finite(weight: Any, where: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)):
        raise InvalidType(f"weights[{where}] is {weight!r}; a log weight is a number")
    if not math.isfinite(weight):
        raise InvalidArgument(
            f"weights[{where}] is {weight}; to leave a choice out, use allow="
        )
    return float(weight)
