"""A vocabulary from a SentencePiece `*.model`, by the package `sentencepiece`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from eliza import flavour
from eliza.errors import BundleError, NotSupported
from eliza.tokenizers import pieces
from eliza.tokenizers.huggingface import find_id
from eliza.tokenizers.model_proto import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, Kinds
from eliza.tokenizers.roles import roles
from eliza.vocab import Vocab

__all__ = ["SentencePieceVocab"]


class SentencePieceVocab(Vocab):
    """The vocabulary of a SentencePiece model.

    Special are its control, unknown and unused ids, and those that mark an end by their
    text. The library never makes a control id from text; where they are parsed, the
    text is cut at them, and each part is a text of its own, with a space before it if
    the model puts one there.

    A model that rewrites texts, as most do to some signs, writes a choice with such a
    sign as another one. `place` refuses it.

    Parameters
    ----------
    data : bytes
        The file.
    bos, eos, n_vocab
        As in `HuggingFaceVocab`; by default the file's own.
    adds_bos : bool, optional
        Whether a prompt begins with `bos`. The file does not say; by default it does.

    Raises
    ------
    BundleError, NotSupported
        As in `HuggingFaceVocab`.

    Notes
    -----
    May be used from several threads.
    """

    def __init__(
        self,
        data: bytes,
        *,
        bos: int | str | None = None,
        adds_bos: bool | None = None,
        eos: Iterable[int | str] = (),
        n_vocab: int | None = None,
    ) -> None:
        self._model = _processor(data)
        kinds = Kinds(data)
        n = len(kinds.texts)
        if n_vocab is not None and n > n_vocab:
            raise BundleError(
                f"the tokenizer has {n} ids, but the model knows {n_vocab}; they do "
                "not belong together"
            )
        padding = range(n, n if n_vocab is None else n_vocab)
        self._texts = [*kinds.texts, *(f"[PAD{i}]" for i in padding)]
        self._ids = {text: i for i, text in enumerate(kinds.texts)}
        own = [token if token >= 0 else None for token in self._named()]
        begin = find_id(own[0] if bos is None else bos, self._ids, len(self._texts))
        named = [*eos] or own[1:]
        found = (find_id(one, self._ids, len(self._texts)) for one in named)
        ends = [token for token in found if token is not None]
        super().__init__(
            len(self._texts), bos=begin, adds_bos=adds_bos is None or adds_bos
        )
        special = kinds.of(CONTROL, UNKNOWN, UNUSED) | {*padding}
        self._specials, self._ends = roles(self._ids, special, ends)
        self._cut_out = kinds.of(USER_DEFINED) - self._specials
        self._eos = ends[0] if ends else None
        marks = [self._texts[i] for i in self._specials if i < n]
        marks.sort(key=len, reverse=True)
        self._mark = re.compile(f"({'|'.join(map(re.escape, marks))})")

    def _named(self) -> tuple[int, int]:
        return self._model.bos_id(), self._model.eos_id()

    def _encode(self, text: str, special: bool) -> list[int]:
        if not special:
            return self._plain(text)
        ids: list[int] = []
        for i, part in enumerate(self._mark.split(text)):
            if i % 2:
                ids.append(self._ids[part])
            else:
                ids.extend(self._plain(part))
        return ids

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text) if text else []
        return ids

    def _piece(self, token: int) -> bytes:
        text = self._texts[token]
        if token in self._specials or token in self._cut_out:
            return text.encode()
        return pieces.sentence_piece(text)

    def _is_special(self, token: int) -> bool:
        return token in self._specials

    def _find_eog(self) -> Iterable[int]:
        return self._ends

    @property
    def eos(self) -> int | None:
        """The id that the model names as the end of a text."""
        return super().eos if self._eos is None else self._eos

    def _contents(self) -> tuple[list[bytes], list[int]]:
        return (
            [text.encode() for text in self._texts],
            flavour.attributes(self.n_vocab, self._specials, self._cut_out),
        )

    def _flavour(self) -> str:
        return flavour.sampled(lambda text: self._encode(text, False))


def _processor(data: bytes) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise NotSupported(
            f"a SentencePiece model needs the package sentencepiece ({error}): "
            "pip install 'eliza[tokenizers]'"
        ) from error
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except Exception as error:  # it raises nothing more special
        raise BundleError(f"this is not a SentencePiece model: {error}") from error
    return processor
