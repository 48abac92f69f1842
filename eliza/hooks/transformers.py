"""Constraints inside transformers' `generate`.

    from eliza.hooks.transformers import logits_processor

    keep = logits_processor(trie, eog=model.generation_config)
    model.generate(**inputs, logits_processor=[keep])

With beams give ``beams=True``. A beam search continues with more beams than there are
ways to go on, and scores those that leave the choices with -inf; such rows are left
alone then, instead of being an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eliza._cursor import Cursor
from eliza._trie import Trie
from eliza.errors import InvalidArgument, OffPathError
from eliza.hooks._follow import Follow
from eliza.hooks._processor import Processor, chosen, keep_values
from eliza.hooks._start import Start

__all__ = [
    "PrefixFunction",
    "TorchProcessor",
    "logits_processor",
    "prefix_allowed_tokens_fn",
]


def _on_cpu(ids: Any) -> Any:
    """Return an array of NumPy, wherever a tensor lies."""
    return ids.detach().cpu().numpy() if hasattr(ids, "detach") else np.asarray(ids)


class TorchProcessor(Processor):
    """A logits processor for batches of torch tensors; made by `logits_processor`."""

    _options = {"pads": True}  # noqa: RUF012

    def __init__(self, trie: Trie | Cursor, *, beams: bool = False, **options: Any):
        if beams:
            self._options = {"pads": True, "dead": True}
        super().__init__(trie, **options)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the scores with -inf on what may not follow the rows."""
        import torch

        n_vocab = self._start.cursor.trie.n_vocab
        if scores.dim() != 2 or scores.shape[1] < n_vocab:
            raise InvalidArgument(
                f"scores of shape {tuple(scores.shape)}; the trie is for {n_vocab} ids"
            )
        if len(input_ids) != len(scores):
            raise InvalidArgument(f"{len(input_ids)} rows of ids, {len(scores)} scores")
        places = self._follow.places(_on_cpu(input_ids))
        allowed = [
            np.empty(0, np.int32) if place is None else place.allowed()
            for place in places
        ]
        out = torch.full_like(scores, -torch.inf)
        for row, ids in enumerate(allowed):
            if ids is None:
                out[row] = scores[row]
        bound = [
            (r, ids) for r, ids in enumerate(allowed) if ids is not None and len(ids)
        ]
        if not bound:
            return out
        rows = np.repeat([r for r, _ in bound], [len(ids) for _, ids in bound])
        columns = np.concatenate([ids for _, ids in bound])
        at = (
            torch.as_tensor(rows, device=scores.device),
            torch.as_tensor(columns, dtype=torch.long, device=scores.device),
        )
        kept = scores[at].detach()
        wide = kept.dtype == torch.float64
        kept = (kept if wide else kept.float()).cpu().numpy()
        first = 0
        for row, ids in bound:
            place, last = places[row], first + len(ids)
            assert place is not None
            kept[first:last] = keep_values(place, kept[first:last], row)
            first = last
        out[at] = torch.as_tensor(kept, device=scores.device).to(scores.dtype)
        return out

    def finish(self, ids: Any) -> Any:
        """Say which choice each finished sequence is.

        Parameters
        ----------
        ids : tensor of int, shape (length,) or (rows, length)

        Returns
        -------
        str or int, or a list of them
            As `Processor.finish`.
        """
        ids = _on_cpu(ids)
        if ids.ndim == 1:
            return super().finish(ids)
        places = self._follow.places(ids, finished=True)
        if any(place is None for place in places):
            raise OffPathError("a sequence is none of the choices: use fewer beams")
        return [chosen(place) for place in places if place is not None]


def logits_processor(
    trie: Trie | Cursor, *, beams: bool = False, **options: Any
) -> TorchProcessor:
    """Return a logits processor for one or more rows.

    Parameters
    ----------
    trie : Trie or Cursor
        The choices.
    beams : bool
        Rows are beams: those that have left the choices get -inf everywhere.
    **options
        `eog` (a tokenizer or a generation config has it), `exits`, `allow`, `after`,
        `prompt_length`, as in `Processor`.
    """
    return TorchProcessor(trie, beams=beams, **options)


class PrefixFunction:
    """Says which ids may follow a row; made by `prefix_allowed_tokens_fn`.

    `generate` asks for one row at a time, and for each beam of it.
    """

    def __init__(
        self,
        trie: Trie | Cursor,
        *,
        beams: bool = False,
        prompt_length: int | None = None,
        **options: Any,
    ) -> None:
        self._start = Start(trie, **options)
        if self._start.free:
            raise InvalidArgument(
                'after="free" has no list of allowed ids: use logits_processor'
            )
        self._beams = beams
        self._prompt_length = prompt_length
        self._new_follow()  # its arguments are checked here
        self._follows: dict[int, Follow] = {}

    def _new_follow(self) -> Follow:
        return Follow(
            self._start, self._prompt_length, dead=self._beams, pads=True, single=True
        )

    def reset(self) -> None:
        """Forget: the next call begins a new generation."""
        self._follows.clear()

    def __call__(self, batch_id: int, ids: Any) -> list[int]:
        """Return the ids that may follow those of a row."""
        follow = self._follows.get(batch_id)
        if follow is None:
            follow = self._follows[batch_id] = self._new_follow()
        (place,) = follow.places(_on_cpu(ids)[np.newaxis])
        # Whatever a beam takes that left the choices, its score stays at -inf.
        found = self._start.ends if place is None else place.allowed()
        assert found is not None
        return [int(id) for id in found]


def prefix_allowed_tokens_fn(
    trie: Trie | Cursor,
    *,
    beams: bool = False,
    prompt_length: int | None = None,
    **options: Any,
) -> PrefixFunction:
    """Return a function for `generate(prefix_allowed_tokens_fn=…)`.

    A logits processor does the same without lists of ids, and also notices where no
    allowed id has a finite score: `generate` then takes any allowed one.

    Parameters
    ----------
    trie, beams, prompt_length, **options
        As in `logits_processor`, ``after="free"`` aside.
    """
    return PrefixFunction(trie, beams=beams, prompt_length=prompt_length, **options)
