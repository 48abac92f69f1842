"""What is known about a model beside its weights: its name and its tokenizer."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eliza.errors import BundleError
from eliza.files.noted import LIST_SAFE, TOKENIZER
from eliza.vocab import Vocab

if TYPE_CHECKING:
    from eliza.files.litertlm import LitertlmFile
    from eliza.files.tflite import TfliteFile

    Source = str | os.PathLike[str] | bytes | Vocab

__all__ = ["About"]

_MAX_TOKENIZER = 256 << 20


@dataclass
class About:
    """A model's name, and how to read its tokenizer.

    Attributes
    ----------
    path : str
        The file, for messages.
    by_eliza : bool
        Whether `eliza convert` wrote the model.
    max_tokens : int
        The context that the file names; 0 if it names none.
    tokenizer : path, bytes, Vocab or None
        Where the tokenizer is, or what was made of it.
    roles : dict
        What `read_vocab` is to be told of the ids.
    """

    path: str
    name: str = ""
    by_eliza: bool = False
    max_tokens: int = 0
    template: str | None = None
    tokenizer: Source | None = None
    roles: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_file(cls, file: TfliteFile, tokenizer: Source | None) -> Self:
        """Read what was noted in a `.tflite` file, else look beside it."""
        self = cls(file.path)
        noted = self._read_note(file)
        if tokenizer is not None:
            self.tokenizer = tokenizer
        elif TOKENIZER not in file.metadata:
            self.tokenizer = _beside(Path(file.path))
        else:
            self.tokenizer = _inflated(file)
            roles = noted.get("ids")
            if isinstance(roles, dict):
                known = ("bos", "adds_bos", "eos")
                self.roles = {name: roles[name] for name in known if name in roles}
        return self

    @classmethod
    def of_container(
        cls, container: LitertlmFile, file: TfliteFile, tokenizer: Source | None
    ) -> Self:
        """Read what a `.litertlm` file says."""
        self = cls(container.path)
        self._read_note(file)
        found = container.llm_metadata()
        self.max_tokens = found.max_tokens
        if found.template is not None:
            self.template = found.template.removeprefix(LIST_SAFE)
        if tokenizer is not None:
            self.tokenizer = tokenizer
            return self
        self.tokenizer = container.tokenizer()
        self.roles = {"adds_bos": bool(found.starts)}
        if found.starts:
            self.roles["bos"] = found.starts[0]
        if found.stops:
            self.roles["eos"] = list(found.stops)
        return self

    def vocab(self, n_vocab: int) -> Vocab:
        """Read the tokenizer; the model knows n_vocab ids.

        Raises
        ------
        BundleError
            There is none, or it is damaged, or does not belong to the model.
        NotSupported
            A package is missing, or it is of a kind that cannot be used.
        """
        if self.tokenizer is None:
            raise BundleError(
                f"{self.path} has no tokenizer in it: put its tokenizer.json or "
                "SentencePiece *.model into the same folder, or give tokenizer="
            )
        if isinstance(self.tokenizer, Vocab):
            return self.tokenizer
        from eliza.tokenizers.read import read_vocab

        return read_vocab(self.tokenizer, n_vocab=n_vocab, **self.roles)

    def _read_note(self, file: TfliteFile) -> dict[str, Any]:
        noted = file.note
        self.by_eliza = bool(noted)
        self.name = str(noted.get("name", ""))
        template = noted.get("chat_template")
        self.template = template if isinstance(template, str) else None
        return noted


def _beside(path: Path) -> Path | None:
    """Return the tokenizer in the folder of a file, if there is just one."""
    folder = path.parent
    exact = folder / "tokenizer.json"
    if exact.is_file():
        return exact
    try:
        models = sorted(folder.glob("*.model"))
    except OSError:
        return None
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:8])
        raise BundleError(
            f"there is more than one tokenizer beside {path}: {names}; give tokenizer="
        )
    return models[0] if models else None


def _inflated(file: TfliteFile) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(file.metadata[TOKENIZER], _MAX_TOKENIZER)
    except zlib.error as error:
        raise BundleError(f"{file.path} has a damaged tokenizer: {error}") from None
    if not inflater.eof:
        raise BundleError(f"{file.path} has a tokenizer that is cut short, or too long")
    return data
