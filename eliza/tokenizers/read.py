"""Reading a tokenizer's file, and what the files beside it say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eliza.errors import BundleError, InvalidType
from eliza.tokenizers.huggingface import HuggingFaceVocab
from eliza.tokenizers.sentencepiece import SentencePieceVocab
from eliza.vocab import Vocab

__all__ = ["Companions", "read_vocab"]

#: The names of a tokenizer in a folder, the best first.
NAMES = ("tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.model")


def read_vocab(
    source: str | os.PathLike[str] | bytes,
    *,
    bos: int | str | None = None,
    adds_bos: bool | None = None,
    eos: Iterable[int | str] | None = None,
    n_vocab: int | None = None,
) -> Vocab:
    """Read the vocabulary of a tokenizer.

    Parameters
    ----------
    source : path or bytes
        A `tokenizer.json`, a SentencePiece `*.model`, or a folder with one of them; or
        the content of such a file. Beside a path, `tokenizer_config.json`,
        `generation_config.json` and `config.json` say what is not given here.
    bos : int or str, optional
        The id that stands at the beginning of a text, or its text.
    adds_bos : bool, optional
        Whether a prompt begins with it. By default what the tokenizer says; a
        SentencePiece model says nothing, and does.
    eos : iterable of int or str, optional
        Ids that end a generation, or their texts, the `eos_token` of a chat template
        first. Those that do so by their text, such as `<|im_end|>`, need not be given.
    n_vocab : int, optional
        The number of ids that the model knows. Those that the tokenizer has no text for
        are special.

    Returns
    -------
    Vocab
        Its fingerprint is that of the same tokenizer in llama.cpp.

    Raises
    ------
    BundleError
        There is no tokenizer, or it is damaged, or does not belong to the model.
    NotSupported
        A package is missing (the message says which), or the tokenizer is of a kind
        that does not give back the bytes of a text.
    """
    if isinstance(source, bytes):
        data, beside = source, Companions(None)
    elif isinstance(source, (str, os.PathLike)):
        path = _file(Path(source))
        data, beside = _content(path), Companions(path.parent)
    else:
        raise InvalidType(
            f"a tokenizer is read from a path or bytes, not from {source!r}"
        )
    is_json = data.lstrip()[:1] == b"{"
    vocab: Vocab = (HuggingFaceVocab if is_json else SentencePieceVocab)(
        data,
        bos=beside.bos if bos is None else bos,
        adds_bos=beside.adds_bos if adds_bos is None else adds_bos,
        eos=beside.eos if eos is None else eos,
        n_vocab=beside.n_vocab if n_vocab is None else n_vocab,
    )
    return vocab


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in NAMES:
        if (path / name).is_file():
            return path / name
    raise BundleError(f"{path} has no tokenizer; looked for {', '.join(NAMES)}")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error


class Companions:
    """What the files beside a tokenizer say of its ids.

    Parameters
    ----------
    folder : Path or None
        Where they are.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.config = self._read("config.json")
        self.generation = self._read("generation_config.json")
        self.tokenizer = self._read("tokenizer_config.json")

    def _read(self, name: str) -> dict[str, Any]:
        if self._folder is None or not (self._folder / name).is_file():
            return {}
        path = self._folder / name
        try:
            found = json.loads(_content(path))
        except ValueError as error:
            raise BundleError(f"{path} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise BundleError(f"{path} is not an object of JSON")
        return found

    @property
    def n_vocab(self) -> int | None:
        """The number of ids that the model knows."""
        text = self.config.get("text_config")
        for part in (self.config, text if isinstance(text, dict) else {}):
            if isinstance(part.get("vocab_size"), int):
                return int(part["vocab_size"])
        return None

    @property
    def adds_bos(self) -> bool | None:
        """Whether a prompt begins with `bos`."""
        found = self.tokenizer.get("add_bos_token")
        return found if isinstance(found, bool) else None

    @property
    def bos(self) -> int | str | None:
        """What begins a text, as an id or a text."""
        return next(self._named("bos"), None)

    @property
    def eos(self) -> list[int | str]:
        """What ends a text, the tokenizer's own first."""
        return [*self._named("eos")]

    def _named(self, name: str) -> Iterator[int | str]:
        text = self.tokenizer.get(f"{name}_token")
        if isinstance(text, dict):  # an added token, with its flags
            text = text.get("content")
        if isinstance(text, str):
            yield text
        for file in (self.generation, self.config):
            found = file.get(f"{name}_token_id")
            for token in found if isinstance(found, list) else [found]:
                if isinstance(token, int) and not isinstance(token, bool):
                    yield token
