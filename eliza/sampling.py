"""How a session picks the next id: bias, repetition penalty, then a draw or the best.

The order is bias, penalty, constraint, temperature, top-k, top-p, min-p. Bias and
penalty change logits and forbid nothing but what is biased to -inf; the filters count
among what the constraint allows, so that they never leave nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza._sample import sample_row
from eliza.errors import InvalidArgument, InvalidType, NoCandidateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eliza.backends.base import Row
    from eliza.constraint import Constraint

__all__ = ["Sampler", "free_argmax"]


class Sampler:
    """What a session draws with. Checked when it is made.

    Parameters
    ----------
    n_vocab : int
        What lies beyond in a row is padding.
    temperature : float
        0: the highest logit, ties to the lowest id; nothing is drawn.
    top_k : int
        Draw among the k highest; 0 for all.
    top_p : float
        Draw among the fewest that together have this probability, in (0, 1].
    min_p : float
        Draw among those at least this likely, relative to the likeliest, in [0, 1].
    repeat_penalty : float
        Above 0. Logits of ids that occur among the last `penalty_last_n` of the
        history, prompt included, are divided by it where they are positive and
        multiplied where they are not; 1 changes nothing. That is llama.cpp's rule.
    penalty_last_n : int
        How far back it looks; 0 for nowhere.
    logit_bias : mapping of int to float, optional
        Added to logits before anything else. -inf forbids an id.
    seed : int, numpy.random.Generator or None
        Where draws come from. A generator is used, and moves on; None is fresh
        entropy.

    Raises
    ------
    InvalidArgument, InvalidType
        A value out of its range; the message names it.
    """

    __slots__ = (
        "_bias",
        "_bias_ids",
        "_last_n",
        "_n_vocab",
        "_options",
        "_penalty",
        "rng",
    )

    def __init__(
        self,
        n_vocab: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repeat_penalty: float = 1.0,
        penalty_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self._n_vocab = n_vocab
        self._options: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
        }
        self._penalty = _number(repeat_penalty, "repeat_penalty")
        if not 0 < self._penalty < math.inf:
            raise InvalidArgument(
                f"repeat_penalty is {repeat_penalty}; it lies above 0 (1 is off)"
            )
        self._last_n = _whole(penalty_last_n, "penalty_last_n")
        self._bias_ids, self._bias = _read_bias(logit_bias, n_vocab)
        self.rng = make_rng(seed)
        # The kernel checks the filters, before anything else is computed.
        sample_row(np.zeros(1, np.float32), self.rng, 1, **self._options)

    @property
    def draws(self) -> bool:
        """Whether picks depend on the generator."""
        return bool(self._options["temperature"])

    @property
    def adjusts(self) -> bool:
        """Whether `adjust` can change anything."""
        return bool(len(self._bias_ids)) or bool(self.last_n)

    @property
    def last_n(self) -> int:
        """How many of the last ids `adjust` needs to be given."""
        return 0 if self._penalty == 1 else self._last_n

    def adjust(self, row: Row, last: Sequence[int]) -> Row:
        """Return the row with bias and penalty: the row itself where there are none.

        Parameters
        ----------
        row : array, float32 [n_vocab or more]
            Not changed.
        last : sequence of int
            The end of the history; its last `last_n` ids count.
        """
        if not len(self._bias_ids) and not (self.last_n and len(last)):
            return row
        row = row.copy()
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if self.last_n and len(last):
            ids = np.unique(np.asarray(last[-self.last_n :], np.int64))
            seen = row[ids]
            penalty = np.float32(self._penalty)
            row[ids] = np.where(seen > 0, seen / penalty, seen * penalty)
        return row

    def pick(self, constraint: Constraint, row: Row, *, greedy: bool = False) -> int:
        """Pick one of the allowed ids; `greedy` takes the best even where others draw.

        Raises
        ------
        NoCandidateError
            None has a logit other than NaN and -inf.
        """
        if greedy or not self.draws:
            return constraint.argmax(row)
        return constraint.sample(row, self.rng, **self._options)

    def pick_free(self, row: Row) -> int:
        """Pick one of all ids.

        Raises
        ------
        NoCandidateError
            None has a logit other than NaN and -inf.
        """
        if not self.draws:
            return free_argmax(row[: self._n_vocab])
        return sample_row(row, self.rng, self._n_vocab, **self._options)


def make_rng(seed: int | np.random.Generator | None) -> np.random.Generator:
    """Return the generator that a seed means.

    Raises
    ------
    InvalidArgument, InvalidType
        It is none.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    if seed is None:
        return np.random.Generator(np.random.PCG64())
    number = _whole(seed, "seed")
    return np.random.Generator(np.random.PCG64(number))


def free_argmax(row: Row) -> int:
    """Return the id with the highest logit, ties to the lowest; NaN never wins."""
    token = int(row.argmax())
    if not row[token] > -np.inf:
        usable = np.where(np.isnan(row), -np.inf, row)
        token = int(usable.argmax())
        if not usable[token] > -np.inf:
            raise NoCandidateError("every logit of the row is NaN or -inf")
    return token


def _read_bias(
    bias: Mapping[int, float] | None, n_vocab: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if bias is not None and not isinstance(bias, Mapping):
        raise InvalidType(
            f"logit_bias is a {type(bias).__name__}; give a mapping from id to number"
        )
    ids, values = [], []
    for key, value in (bias or {}).items():
        token = _whole(key, "an id in logit_bias")
        if token >= n_vocab:
            raise InvalidArgument(f"logit_bias: id {token} is not in [0, {n_vocab})")
        number = _number(value, f"logit_bias[{token}]")
        if not number < math.inf:  # NaN too
            raise InvalidArgument(
                f"logit_bias[{token}] is {value}; it is finite, or -inf"
            )
        ids.append(token)
        values.append(number)
    return np.array(ids, np.int64), np.array(values, np.float32)


def _number(value: Any, name: str) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise InvalidType(f"{name} is {value!r}; it is a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidType(f"{name} is {value!r}; it is a number") from None


def _whole(value: Any, name: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidType(f"{name} is {value!r}; it is a whole number") from None
    if number < 0:
        raise InvalidArgument(f"{name} is {number}; it is 0 or more")
    return number
