"""From the tokenizer in a GGUF file to a `tokenizer.json` that does the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from eliza.errors import BundleError, NotSupported
from eliza.tokenizers.huggingface import added_token
from eliza.tokenizers.pieces import SPACE, byte_letters
from eliza.tokenizers.roles import roles
from eliza.tokenizers.splitting import rule, split

__all__ = ["GgufTokenizer", "from_gguf"]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


def from_gguf(metadata: Mapping[str, Any]) -> bytes:
    """Write the tokenizer of a GGUF file as a `tokenizer.json`.

    Parameters
    ----------
    metadata : mapping
        The file's values by their keys, `tokenizer.ggml.tokens` and the others.

    Returns
    -------
    bytes
        The file.

    Raises
    ------
    BundleError
        Something is missing in the metadata, or contradicts itself.
    NotSupported
        The tokenizer is of a kind that such a file cannot do, or not faithfully.
    """
    return GgufTokenizer(metadata).to_json()


class GgufTokenizer:
    """What a GGUF file says of its tokenizer.

    Parameters
    ----------
    metadata : mapping
        As for `from_gguf`.

    Attributes
    ----------
    texts : list of str
        Those of all ids.
    bos, eos : int or None
        The ids that begin and end a text.
    adds_bos : bool
        Whether a prompt begins with `bos`.
    ends : list of int
        All ids that end a generation, `eos` first.
    chat_template : str or None
        For chat messages.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.kind: str = self._get("model", None)
        self.texts: list[str] = list(self._get("tokens", ()))
        if not self.texts or not self.kind:
            raise BundleError("the GGUF file has no tokenizer")
        n = len(self.texts)
        given = self._get("token_type", None)
        types = [_NORMAL] * n if given is None else list(map(int, given))
        if len(types) != n:
            raise BundleError(f"{n} tokens, but {len(types)} types of tokens")
        self._types = types
        self.bos = self._token("bos")
        self.eos = self._token("eos")
        if self.kind == "gpt2":
            self._rule = rule(self._get("pre", "default"))
        self.adds_bos = bool(self._get("add_bos_token", self._adds_bos_by_default()))
        self.adds_bos &= self.bos is not None
        template = metadata.get("tokenizer.chat_template")
        self.chat_template: str | None = template or None
        names = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
        known = [t for t in map(self._token, names) if t is not None]
        special = {i for i, t in enumerate(types) if t in (_UNKNOWN, _CONTROL, _UNUSED)}
        ids = {text: i for i, text in enumerate(self.texts)}
        if len(ids) != n:
            raise NotSupported("two ids have the same text in this vocabulary")
        self._ids = ids
        self.special, ends = roles(ids, special, known)
        self.ends = [*known[:1], *sorted(ends - {*known[:1]})]

    def _get(self, name: str, default: Any) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _token(self, name: str) -> int | None:
        value = self._get(f"{name}_token_id", None)
        return int(value) if value is not None and value < len(self.texts) else None

    def _adds_bos_by_default(self) -> bool:
        return self.kind == "llama" or (self.kind == "gpt2" and self._rule.whole_words)

    # The file

    def to_json(self) -> bytes:
        """Return it as a `tokenizer.json`.

        Raises
        ------
        NotSupported
            Such a file cannot do the same.
        """
        if self.kind == "gpt2":
            parts = self._byte_level()
        elif self.kind == "llama":
            parts = self._sentence_piece()
        else:
            raise NotSupported(
                f"a tokenizer of the kind {self.kind!r} cannot be written as a "
                "tokenizer.json; gpt2 (byte-level BPE) and llama (SentencePiece) can"
            )
        document = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(),
            "post_processor": self._template(),
            **parts,
        }
        return json.dumps(document, ensure_ascii=False).encode()

    def _added(self) -> list[dict[str, Any]]:
        return [
            added_token(i, text, special=i in self.special)
            for i, text in enumerate(self.texts)
            if (i in self.special and not self._is_filler(i))
            or self._types[i] == _USER_DEFINED
        ]

    def _is_filler(self, token: int) -> bool:
        """Whether an id is there only to fill up the rows of the model."""
        unused = self._types[token] == _UNUSED
        return unused and self.texts[token] == f"[PAD{token}]"

    def _vocab(self) -> dict[str, int]:
        return {text: i for i, text in enumerate(self.texts) if not self._is_filler(i)}

    def _template(self) -> dict[str, Any] | None:
        if not self.adds_bos or self.bos is None:
            return None
        text = self.texts[self.bos]
        first = {"SpecialToken": {"id": text, "type_id": 0}}
        special = {"id": text, "ids": [self.bos], "tokens": [text]}
        single, pair = (
            [first, *({"Sequence": {"id": s, "type_id": i}} for i, s in enumerate(ss))]
            for ss in ("A", "AB")
        )
        return {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": {text: special},
        }

    def _byte_level(self) -> dict[str, Any]:
        if self._get("add_space_prefix", False):
            raise NotSupported("byte-level BPE with a space before each text")
        merges = [merge.split(" ") for merge in self._get("merges", ())]
        model = _bpe(self._vocab(), merges, ignore_merges=self._rule.whole_words)
        steps = [*self._rule.steps]
        lacking = [c for c in byte_letters() if c not in self._ids]
        if lacking:
            # llama.cpp drops a byte that has no id after it has merged what is beside
            # it; this one before, so that the neighbours would merge.
            steps.append(split("[" + "".join(map(re.escape, lacking)) + "]"))
        return {
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": model,
        }

    def _sentence_piece(self) -> dict[str, Any]:
        unknown = next((i for i, t in enumerate(self._types) if t == _UNKNOWN), None)
        spaced = bool(self._get("add_space_prefix", True))
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        prepend = {"type": "Prepend", "prepend": SPACE}
        back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
        decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
        if spaced:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        model = _bpe(
            self._vocab(),
            self._merges(),
            unk_token=None if unknown is None else self.texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        normalizers = [prepend, replace] if spaced else [replace]
        return {
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        }

    def _merges(self) -> list[Sequence[str]]:
        """Return the pairs that make up the pieces, those with a high score first.

        A `tokenizer.json` merges by the rank of the pair, SentencePiece by the score of
        what it becomes, and what is further left first. The two are the same where no
        two pieces have one score; and for runs of one sign, such as spaces, which grow
        from the left: there, and among the pairs of one piece, a long left part first.
        """
        scores = self._get("scores", None)
        if scores is None or len(scores) != len(self.texts):
            raise BundleError("a SentencePiece vocabulary has a score for each token")
        ranked: list[tuple[float, int, str, str]] = []
        by_score: dict[float, str] = {}
        for token, text in enumerate(self.texts):
            cuts = ((text[:at], text[at:]) for at in range(1, len(text)))
            pairs = [pair for pair in cuts if self._can_merge(*pair)]
            if not pairs:
                continue
            score = float(scores[token])
            other = by_score.setdefault(score, text)
            if other != text and len({*other, *text}) > 1:
                raise NotSupported(
                    f"the pieces {other!r} and {text!r} have the same score {score}: "
                    "which of them is merged first, a tokenizer.json cannot say"
                )
            ranked.extend((-score, -len(left), left, right) for left, right in pairs)
        ranked.sort()
        return [(left, right) for _, _, left, right in ranked]

    def _can_merge(self, left: str, right: str) -> bool:
        """Whether two parts of a piece can come to stand side by side."""
        ids, parts = self._ids, (left, right)
        if not all(part in ids or len(part) == 1 for part in parts):
            return False
        lacking = [part for part in parts if part not in ids]
        if lacking:
            raise NotSupported(
                f"{lacking[0]!r} is part of the piece {left + right!r} and has no id: "
                "a tokenizer.json cannot merge it"
            )
        return True


def _bpe(vocab: dict[str, int], merges: list[Any], **options: object) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": vocab,
        "merges": merges,
    }
