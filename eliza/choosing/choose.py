"""From a placed set of choices to an answer: what `Model.choose` does inside."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eliza._trie import Trie
from eliza.choosing.answer import Answer, Stats
from eliza.choosing.decide import counts_on_path, decide, rank
from eliza.choosing.policy import PLAIN, Policy, log_weights, make_policy
from eliza.choosing.search import score_all
from eliza.choosing.trail import Trail
from eliza.choosing.tree import Tree
from eliza.errors import InvalidArgument, NoCandidateError
from eliza.placing import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from numpy.typing import NDArray

    from eliza.cache import TrieCache
    from eliza.choosing.choices import Choices
    from eliza.choosing.request import Request
    from eliza.choosing.trail import Event
    from eliza.session import Session
    from eliza.spelling import Spellings
    from eliza.vocab import Vocab

__all__ = ["Placed", "Prior", "answer"]


class Placed(NamedTuple):
    """Choices as ids after a prompt.

    Attributes
    ----------
    prompt_ids : list of int
        What the model must have read.
    trie : Trie or Spellings
        The choices.
    order : ndarray of int32, shape (n_leaves,)
        Leaf number to position among the choices.
    exits : tuple of int
        Exit ids for all leaves.
    """

    prompt_ids: list[int]
    trie: Trie | Spellings
    order: NDArray[np.int32]
    exits: tuple[int, ...]

    @classmethod
    def of(
        cls,
        vocab: Vocab,
        prompt: str | Iterable[int],
        choices: Choices,
        suffix: str,
        cache: TrieCache,
        spelling: str = "canonical",
    ) -> Placed:
        """Place choices after a prompt."""
        if choices.trie is None:
            texts = choices.texts
            if spelling == "canonical":
                ids = vocab.prompt_ids(prompt)
                ids, found = locate(vocab, ids, texts, suffix, rooted=True, cache=cache)
                return cls(ids, found.trie, found.extra.order, ())
            placed = vocab.place(prompt, texts, suffix, cache)
            ids = placed.prompt_ids.tolist()
            spelled = vocab.respell(placed, suffix, cache)
            at = {text: i for i, text in enumerate(texts)}
            order = np.array([at[name] for name in spelled.names], np.int32)
            return cls(ids, spelled, order, ())
        if spelling != "canonical":
            raise InvalidArgument(
                f"spelling={spelling!r} is for choices given as text; a set given by "
                "ids has no other spellings"
            )
        if suffix:
            raise InvalidArgument(
                "suffix is for choices given as text; a set given by ids holds the "
                "ids that end a choice itself (exits=)"
            )
        trie = choices.trie
        exits = vocab.eog if trie.needs_exits else ()
        order = np.arange(len(trie), dtype=np.int32)
        return cls(vocab.prompt_ids(prompt), trie, order, exits)

    def cursor(self, permitted: NDArray[np.bool_] | None = None) -> Any:
        """Return a cursor at the root, over all leaves or a mask of them."""
        return self.trie.cursor(exits=self.exits, allow=permitted)

    def tokens(self) -> list[tuple[int, ...]]:
        """Return the ids of each leaf. Not for all spellings: there are many."""
        assert isinstance(self.trie, Trie)
        return [self.trie.tokens(leaf) for leaf in range(len(self.trie))]


class Prior(NamedTuple):
    """What the choices score without the input, and what computing that took.

    Attributes
    ----------
    scores : ndarray of float64, shape (n_choices,)
        Whole log-likelihoods, by position among the choices.
    passes, positions : int
        0 where the scores were known.
    """

    scores: NDArray[np.float64]
    passes: int = 0
    positions: int = 0

    @classmethod
    def compute(cls, session: Session, placed: Placed) -> Prior:
        """Score all choices after the prior's prompt."""
        timeline = session.timeline
        session.sync(placed.prompt_ids)
        with Tree(timeline) as tree:
            likelihoods = score_all(
                tree, placed.cursor(), timeline.row(), Trail(0.0, None), whole=True
            )
        scores = np.empty(len(placed.order))
        for leaf, logprob in likelihoods.items():
            scores[placed.order[leaf]] = logprob
        return cls(scores, timeline.passes, timeline.positions)


def answer(
    session: Session,
    choices: Choices,
    placed: Placed,
    request: Request,
    allow: Any,
    prior: Prior | None,
    start: float,
    trace: Callable[[Event], Any] | None,
) -> Answer:
    """Choose, and say what was chosen at what cost.

    Parameters
    ----------
    session : Session
        Its timeline becomes the prompt.
    choices, placed
        The choices, and where they stand.
    request : Request
        How to choose.
    allow : object
        As given to `Model.choose`.
    prior : Prior or None
        For `normalize="prior"`.
    start : float
        `time.perf_counter()` when the call began.
    trace : callable or None
        Called with each `Event`.

    Returns
    -------
    Answer
    """
    permitted = None if allow is None else choices.permitted(allow)[placed.order]
    cursor = placed.cursor(permitted)
    policy = _policy(session.vocab, choices, placed, request, permitted, prior)
    timeline = session.timeline
    passes, positions = timeline.passes, timeline.positions
    trail = Trail(start, trace)
    timeline.on_pass = trail.decoded
    try:
        reused = session.sync(placed.prompt_ids)
        made = decide(session, cursor, request, policy, trail)
    finally:
        timeline.on_pass = None
    if prior is not None:
        passes -= prior.passes
        positions -= prior.positions
    trie = placed.trie
    tokens = trie.tokens(made.leaf) if isinstance(trie, Trie) else session.ids
    decided, forced = counts_on_path(cursor, tokens)
    stats = Stats(
        forward_passes=timeline.passes - passes,
        positions=timeline.positions - positions,
        prompt_tokens=len(placed.prompt_ids),
        reused_tokens=reused,
        decided=decided,
        forced=forced,
        seconds=time.perf_counter() - start,
    )
    ranking = probability = margin = None
    if request.ranking is not None and made.likelihoods is not None:
        values = [choices.values[i] for i in placed.order]
        applied = policy if request.ranking == "whole" else PLAIN
        ranking, probability, margin = rank(
            request.ranking, made.likelihoods, applied, values, made.leaf
        )
    sure = probability if made.bounds is None else made.bounds[0]
    abstained = (
        request.threshold is not None and sure is not None and sure < request.threshold
    )
    at = int(placed.order[made.leaf])
    return Answer(
        value=request.default if abstained else choices.values[at],
        index=None if abstained else choices.index[at],
        logprob=made.logprob,
        probability=probability,
        probability_bounds=made.bounds,
        margin=margin,
        ranking=ranking,
        abstained=abstained,
        stats=stats,
        choice=choices.values[at],
        _way=partial(trail.links, session.vocab, cursor, tuple(tokens), made.leaf),
    )


def _policy(
    vocab: Vocab,
    choices: Choices,
    placed: Placed,
    request: Request,
    permitted: NDArray[np.bool_] | None,
    prior: Prior | None,
) -> Policy:
    length = None
    if request.normalize == "tokens":
        length = np.array([len(ids) for ids in placed.tokens()], np.float64)
    elif request.normalize == "bytes" and choices.trie is None:
        by_choice = [len(text.encode()) for text in choices.texts]
        length = np.array(by_choice, np.float64)[placed.order]
    elif request.normalize == "bytes":
        sizes = [len(vocab.decode(ids)) for ids in placed.tokens()]
        length = np.array(sizes, np.float64)
        length = np.maximum(length, 1.0)  # a leaf of special ids has no bytes
    weight = None
    if request.weights is not None:
        weight = log_weights(request.weights, choices)[placed.order]
    scores = None
    if prior is not None:
        scores = prior.scores[placed.order]
        possible = np.isfinite(scores)
        if permitted is not None:
            possible |= ~permitted
        if not possible.all():
            at = placed.order[int(possible.argmin())]
            raise NoCandidateError(
                f"after prior_prompt the model gives {choices.values[at]!r} a "
                "probability of zero, so that its score would be infinite; give "
                "another prior_prompt, or leave the choice out by allow="
            )
    return make_policy(
        length=length,
        prior=scores,
        weight=weight,
        permitted=permitted,
    )
