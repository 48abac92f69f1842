"""A vocabulary from a `tokenizer.json`, by the package `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from eliza import flavour
from eliza.errors import BundleError, NotSupported
from eliza.once import once
from eliza.tokenizers import pieces
from eliza.tokenizers.roles import roles
from eliza.vocab import Vocab

__all__ = ["HuggingFaceVocab"]


class HuggingFaceVocab(Vocab):
    """The vocabulary of a `tokenizer.json`.

    Special are the ids that the file lists as special, its unknown id, those that mark
    an end by their text, and those that it has no text for. Other added tokens are cut
    out of every text before anything else is split; such an id is text.

    Parameters
    ----------
    data : bytes
        The file.
    bos : int or str, optional
        The id at the beginning of a text, or its text. By default the one that the
        file's own template puts there.
    adds_bos : bool, optional
        Whether a prompt begins with it. By default whether the template says so.
    eos : iterable of int or str
        Ids that end a generation, or their texts; those that do so by their text need
        not be given. The first is the `eos_token` of a chat template.
    n_vocab : int, optional
        The number of ids that the model knows; at least as many as the file has.

    Raises
    ------
    BundleError
        It is not a tokenizer, or has more ids than the model.
    NotSupported
        The package is missing; or the tokenizer is of a kind that does not give back
        the bytes that it was given.

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
        file = _File(data)
        known = file.texts()
        n = 1 + max(known)
        if n_vocab is not None and n > n_vocab:
            raise BundleError(
                f"the tokenizer has id {n - 1}, but the model knows {n_vocab} ids; "
                "they do not belong together"
            )
        n = n if n_vocab is None else n_vocab
        ids = {text: i for i, text in known.items()}
        own_bos = file.first_of_template()
        begin = find_id(own_bos if bos is None else bos, ids, n)
        ends = [token for one in eos if (token := find_id(one, ids, n)) is not None]
        super().__init__(
            n, bos=begin, adds_bos=own_bos is not None if adds_bos is None else adds_bos
        )
        missing = {i for i in range(n) if i not in known}
        self._texts = [known.get(i) or f"[PAD{i}]" for i in range(n)]
        self._read = file.reading()
        self._added = frozenset(file.added)
        self._specials, self._ends = roles(ids, file.specials(ids) | missing, ends)
        self._eos = ends[0] if ends else None
        self._json = file.adjusted({i: known[i] for i in self._specials - missing})
        self._plain = _tokenizer(self._json, letters=True)

    def _encode(self, text: str, special: bool) -> list[int]:
        tokenizer = self._parsing if special else self._plain
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @once
    def _parsing(self) -> Any:
        """Make the tokenizer for texts in which special ids may be written.

        Which of the two it is, is a switch of the whole object, not of a call.
        """
        return _tokenizer(self._json, letters=False)

    def _piece(self, token: int) -> bytes:
        text = self._texts[token]
        if token in self._added or token in self._specials:
            return text.encode()
        return self._read(text)

    def _is_special(self, token: int) -> bool:
        return token in self._specials

    def _find_eog(self) -> Iterable[int]:
        return self._ends

    @property
    def eos(self) -> int | None:
        """The id that the model names as the end of a text."""
        return super().eos if self._eos is None else self._eos

    def _contents(self) -> tuple[list[bytes], list[int]]:
        cut_out = self._added - self._specials
        return (
            [text.encode() for text in self._texts],
            flavour.attributes(self.n_vocab, self._specials, cut_out),
        )

    def _flavour(self) -> str:
        return flavour.sampled(lambda text: self._encode(text, False))


class _File:
    """The parts of a `tokenizer.json` that say what its ids stand for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        try:
            self._document: dict[str, Any] = json.loads(data)
            self._model: dict[str, Any] = self._document["model"]
            kind = self._model.get("type")
            added: list[dict[str, Any]] = self._document.get("added_tokens") or []
            self.added = {int(entry["id"]): entry for entry in added}
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise BundleError(f"this is not a tokenizer.json: {error!r}") from error
        if kind not in ("BPE", "Unigram"):
            raise NotSupported(
                f"a tokenizer of the kind {kind} does not give back the bytes of a "
                "text; eliza reads BPE and Unigram"
            )
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if self._model.get(name):
                raise NotSupported(
                    f"the tokenizer marks words by {name}={self._model[name]!r}, and "
                    "does not give back the bytes of a text"
                )

    def texts(self) -> dict[int, str]:
        """Return the ids with their texts."""
        vocab = self._model.get("vocab")
        try:
            if isinstance(vocab, dict):
                texts = {int(i): str(text) for text, i in vocab.items()}
            else:
                texts = {i: str(text) for i, (text, _) in enumerate(vocab or ())}
            texts.update((i, str(e["content"])) for i, e in self.added.items())
        except (TypeError, ValueError, LookupError) as error:
            raise BundleError(
                f"the tokenizer's ids cannot be read: {error!r}"
            ) from error
        if not texts or min(texts) < 0 or max(texts) >= 1 << 24:
            raise BundleError("the tokenizer has no ids, or one beyond 2**24")
        return texts

    def specials(self, ids: dict[str, int]) -> set[int]:
        """Return the ids that the file itself makes special."""
        special = {i for i, entry in self.added.items() if entry.get("special")}
        unknown = self._model.get("unk_token")
        if unknown in ids:
            special.add(ids[unknown])
        if isinstance(self._model.get("unk_id"), int):
            special.add(self._model["unk_id"])
        return special

    def reading(self) -> pieces.Reading:
        """Return how the texts of the vocabulary are read, by the file's decoder."""
        steps = {
            step.get("type"): step for step in _steps(self._document.get("decoder"))
        }
        if "ByteLevel" in steps:
            return pieces.byte_level
        pattern = steps.get("Replace", {}).get("pattern", {})
        spaces = "Metaspace" in steps or pattern.get("String") == pieces.SPACE
        if spaces or self._model.get("byte_fallback"):
            return pieces.sentence_piece
        if set(steps) <= {"Fuse"}:
            return pieces.plain
        raise NotSupported(
            f"the tokenizer's decoder ({', '.join(map(str, steps))}) is none of those "
            "by which ids are the bytes of a text"
        )

    def first_of_template(self) -> int | None:
        """Return the id that the file puts before a text, if it puts one."""
        for step in _steps(self._document.get("post_processor")):
            if step.get("type") == "TemplateProcessing":
                first = (step.get("single") or [{}])[0].get("SpecialToken")
                if first:
                    ids = step["special_tokens"][first["id"]]["ids"]
                    return int(ids[0])
        return None

    def adjusted(self, special: dict[int, str]) -> str:
        """Return the file with these ids marked as special, and no others.

        What would shorten, lengthen or vary the ids of a text is left out.
        """
        changed = False
        for i, entry in self.added.items():
            if bool(entry.get("special")) != (i in special):
                entry["special"] = i in special
                changed = True
        for i in special.keys() - self.added.keys():
            self.added[i] = added_token(i, special[i], special=True)
            changed = True
        for where, name in (
            (self._document, "truncation"),
            (self._document, "padding"),
            (self._model, "dropout"),
        ):
            if where.get(name) is not None:
                where[name] = None
                changed = True
        if not changed:
            return self._data.decode()
        self._document["added_tokens"] = [self.added[i] for i in sorted(self.added)]
        return json.dumps(self._document, ensure_ascii=False)


def find_id(
    named: int | str | None, ids: Mapping[str, int], n_vocab: int
) -> int | None:
    """Return the id that is given as such or by its text; None if it has none."""
    if named is None or isinstance(named, str):
        return ids.get(named or "")
    if not 0 <= named < n_vocab:
        raise BundleError(
            f"a text begins or ends with id {named}, but the tokenizer has {n_vocab}"
        )
    return named


def added_token(token: int, text: str, *, special: bool) -> dict[str, Any]:
    """Return an entry of the list of texts that are cut out before the others."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, **flags, "special": special}


def _steps(part: Any) -> list[dict[str, Any]]:
    """Return the steps of a part of the file, which can be one or a sequence."""
    if not isinstance(part, dict):
        return []
    if part.get("type") != "Sequence":
        return [part]
    lists = (value for value in part.values() if isinstance(value, list))
    return [step for steps in lists for one in steps for step in _steps(one)]


def _tokenizer(text: str, *, letters: bool) -> Any:
    """Make a tokenizer; with `letters`, the texts of special ids are just letters."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise NotSupported(
            f"a tokenizer.json needs the package tokenizers ({error}): "
            "pip install 'eliza[tokenizers]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # it raises nothing more special
        raise BundleError(f"the tokenizer.json cannot be used: {error}") from error
    tokenizer.encode_special_tokens = letters
    return tokenizer
