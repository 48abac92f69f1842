"""What `choose` returns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from eliza.choosing.request import generator
from eliza.frozen import Frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from eliza.choosing.trail import Link

__all__ = ["Answer", "Ranked", "Ranking", "Stats"]


class Ranked(NamedTuple):
    """One choice with its score.

    Attributes
    ----------
    value : object
        The choice, as the caller gave it.
    logprob : float
        Its log-likelihood, whole or masked as the ranking says.
    probability : float
        Its share among the choices: the softmax of the scores.
    score : float
        What the ranking goes by: the log-likelihood, normalised and weighted as asked.
    """

    value: Any
    logprob: float
    probability: float
    score: float


class Ranking:
    """Every permitted choice, the most probable first.

    A read-only sequence of `Ranked`. The probabilities sum to 1 within 1e-6.

    Attributes
    ----------
    kind : {"masked", "whole"}
        Which score: "masked" is the product of the probabilities renormalised over
        the allowed ids at each point; "whole" the model's own likelihood of all ids.
    """

    __slots__ = ("_entries", "kind")

    def __init__(self, kind: str, entries: tuple[Ranked, ...]) -> None:
        self.kind = kind
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: int) -> Ranked:
        return self._entries[i]

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self._entries)

    def draw(self, rng: Any = None) -> Any:
        """Draw a value by the probabilities.

        Parameters
        ----------
        rng : numpy.random.Generator, int or None
            A generator, which moves on by one double; a seed; or None.

        Returns
        -------
        object
            The value of one choice.
        """
        point = generator(rng).random() * math.fsum(r.probability for r in self)
        for ranked in self._entries:
            point -= ranked.probability
            if point < 0:
                return ranked.value
        return max(self._entries, key=lambda ranked: ranked.probability).value

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{r.value!r}: {r.probability:.3f}" for r in self._entries[:5]
        )
        more = ", …" if len(self) > 5 else ""
        return f"<Ranking {self.kind} {{{shown}{more}}}>"


class Stats(NamedTuple):
    """What an answer cost.

    Attributes
    ----------
    forward_passes : int
        Batches given to the runtime, the prompt's one included.
    positions : int
        Ids computed in them.
    prompt_tokens : int
        Ids of the prompt up to where the choices part.
    reused_tokens : int
        How many of those were still in the runtime's memory.
    decided : int
        Points on the way to the answer at which more than one id was allowed.
    forced : int
        Ids of the answer that could only go one way.
    seconds : float
        Wall-clock time, tokenizing included.
    """

    forward_passes: int
    positions: int
    prompt_tokens: int
    reused_tokens: int
    decided: int
    forced: int
    seconds: float


class Answer(Frozen):
    """The choice that was made.

    Attributes
    ----------
    value : object
        The choice, as the caller gave it (or the value that its text stands for).
    index : int or None
        Where it stands in the caller's choices, the first one if it is there twice;
        None when abstained.
    logprob : float
        Its log-likelihood: whole for `method="exact"`, masked for the others.
    probability : float or None
        Its probability among the choices, by the ranking asked for.
    probability_bounds : (float, float) or None
        What the search for the exact answer knows of its probability, normalisation
        and weights included.
    margin : float or None
        Its score minus that of the best other choice, by the ranking asked for;
        infinite if there is no other.
    ranking : Ranking or None
        All choices, if `ranking=` was given.
    abstained : bool
        Its probability lies below the threshold: `value` is the default, and all else
        is about the choice that would have been made.
    stats : Stats
        What it cost.
    choice : object
        The choice that was made; `value`, unless abstained.
    """

    __slots__ = (  # noqa: RUF023 (the order in which they are shown)
        "value",
        "index",
        "logprob",
        "probability",
        "probability_bounds",
        "margin",
        "ranking",
        "abstained",
        "stats",
        "choice",
        "_way",
    )
    value: Any
    index: int | None
    logprob: float
    probability: float | None
    probability_bounds: tuple[float, float] | None
    margin: float | None
    ranking: Ranking | None
    abstained: bool
    stats: Stats
    choice: Any
    _way: Callable[[], tuple[Link, ...]]

    def __init__(
        self,
        value: Any,
        index: int | None,
        logprob: float,
        probability: float | None,
        probability_bounds: tuple[float, float] | None,
        margin: float | None,
        ranking: Ranking | None,
        abstained: bool,
        stats: Stats,
        choice: Any,
        _way: Callable[[], tuple[Link, ...]],
    ) -> None:
        self._set(
            value,
            index,
            logprob,
            probability,
            probability_bounds,
            margin,
            ranking,
            abstained,
            stats,
            choice,
            _way,
        )

    @property
    def links(self) -> tuple[Link, ...]:
        """The way to the choice: decided between which alternatives, or forced.

        Put together when asked for: few ask, and it would be a tenth of eliza's own
        work in a greedy call.
        """
        return self._way()

    def explain(self, width: int = 80) -> str:
        """Return a text for the terminal: how the answer came about.

        Parameters
        ----------
        width : int
            Columns to use.
        """
        from eliza.choosing.explain import as_text

        return as_text(self, width)

    def plot(self, path: str | Path) -> None:
        """Draw the ranking, or the bounds, into a picture file (needs matplotlib)."""
        from eliza.choosing.explain import draw

        draw(self, path)

    def _repr_html_(self) -> str:
        from eliza.choosing.explain import as_html

        return as_html(self)
