"""What a caller asks of `choose` beside prompt and choices, checked as a whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eliza.errors import InvalidArgument, InvalidType, NotSupported
from eliza.vocab import SPELLINGS

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["Request", "Sampling", "generator"]

METHODS = ("exact", "greedy", "sample")
RANKINGS = ("masked", "whole")
NORMALIZATIONS = ("none", "tokens", "bytes", "prior")


class Sampling(NamedTuple):
    """How an id is drawn from those allowed; the defaults take nothing away.

    Attributes
    ----------
    temperature, top_k, top_p, min_p
        As `Cursor.sample`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


PLAIN_DRAW = Sampling()


#: By method, without any option; never changed.
_plain: dict[str, Request] = {}


class Request:
    """The options of `Model.choose`; see there.

    Raises
    ------
    InvalidArgument, InvalidType
        An option has a value that it does not take, or makes no sense beside another.
    """

    __slots__ = (
        "default",
        "delta",
        "method",
        "normalize",
        "prior_prompt",
        "ranking",
        "rng",
        "sampling",
        "spelling",
        "threshold",
        "weights",
    )

    @classmethod
    def plain(cls, method: str) -> Request:
        """Return the request for a method with nothing else said, made once."""
        found = _plain.get(method) if type(method) is str else None
        if found is None:
            found = cls(method)
            _plain[method] = found
        return found

    def __init__(
        self,
        method: str = "exact",
        ranking: str | None = None,
        normalize: str = "none",
        prior_prompt: Any = None,
        weights: Any = None,
        threshold: float | None = None,
        default: Any = None,
        sampling: Sampling = PLAIN_DRAW,
        rng: Any = None,
        delta: float | None = None,
        spelling: str = "canonical",
    ) -> None:
        self.method = method
        self.ranking = ranking
        self.normalize = normalize
        self.prior_prompt = prior_prompt
        self.weights = weights
        self.threshold = threshold
        self.default = default
        self.sampling = sampling
        self.rng = rng
        self.delta = delta
        self.spelling = spelling
        self._check()

    def _check(self) -> None:
        _one_of("method", self.method, METHODS)
        if self.ranking is not None:
            _one_of("ranking", self.ranking, RANKINGS)
        _one_of("normalize", self.normalize, NORMALIZATIONS)
        _one_of("spelling", self.spelling, SPELLINGS)
        if self.spelling == "all" and (self.method == "exact" or self.ranking):
            asked = f"method={self.method!r}"
            if self.ranking:
                asked = f"ranking={self.ranking!r}"
            raise NotSupported(
                f"{asked} with spelling='all': the likelihood of a choice over all its "
                "spellings is not defined here; pass method='greedy' and no ranking"
            )
        _number("delta", self.delta, 0, math.inf)
        _number("threshold", self.threshold, 0, 1)
        self._check_scores()
        self._check_sampling()

    @property
    def scores_whole(self) -> bool:
        """Whether whole likelihoods are computed, which policies apply to."""
        return self.method == "exact" or self.ranking == "whole"

    def _check_scores(self) -> None:
        if not self.scores_whole:
            for name, given in (
                ("normalize", self.normalize != "none"),
                ("weights", self.weights is not None),
            ):
                if given:
                    raise InvalidArgument(
                        f"{name} changes whole scores, which method={self.method!r} "
                        "does not have: pass method='exact' or ranking='whole'"
                    )
        if self.normalize == "prior" and self.prior_prompt is None:
            raise InvalidArgument(
                "normalize='prior' needs prior_prompt=: the same prompt without the "
                "input that it is about"
            )
        if self.normalize != "prior" and self.prior_prompt is not None:
            raise InvalidArgument("prior_prompt is for normalize='prior'")
        if self.threshold is None:
            if self.default is not None:
                raise InvalidArgument(
                    "default is the answer below a threshold: pass threshold="
                )
        elif self.method != "exact" and self.ranking is None:
            raise InvalidArgument(
                f"threshold needs a probability, which method={self.method!r} does not "
                "have by itself: pass ranking='masked' or 'whole'"
            )

    def _check_sampling(self) -> None:
        chosen = self.sampling
        if self.method != "sample" and (chosen != PLAIN_DRAW or self.rng is not None):
            raise InvalidArgument(
                "temperature, top_k, top_p, min_p and rng are for method='sample', "
                f"not {self.method!r}"
            )


def generator(rng: Any) -> Generator:
    """Return the generator to draw with.

    Parameters
    ----------
    rng : numpy.random.Generator, int or None
        A generator, which moves on; a seed; or None for an unpredictable one.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None or (isinstance(rng, int) and not isinstance(rng, bool) and rng >= 0):
        return np.random.default_rng(rng)
    raise InvalidType(
        f"rng is {rng!r}; it is a numpy.random.Generator, a seed of 0 or more, or None"
    )


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidArgument(f"{name} is {value!r}; it is one of {known}")


def _number(name: str, value: Any, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise InvalidType(f"{name} is {value!r}; it is a number")
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}; it lies in [{low}, {high}]")
