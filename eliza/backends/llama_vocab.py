"""The vocabulary of a model that llama.cpp has loaded."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from eliza import flavour
from eliza.backends.llama_context import function_address
from eliza.backends.llama_letters import Letters
from eliza.backends.llama_prompts import Borders, PromptMemo
from eliza.backends.llama_scan import attributes, flagged, piece
from eliza.errors import InvalidArgument
from eliza.vocab import Vocab

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LlamaVocab"]

_INT32_MIN = -(2**31)


class _Buffers(threading.local):
    """What the library writes to, one of each for a thread.

    They are kept: new ones for each short text would cost a tenth of its encoding.
    """

    def __init__(self) -> None:
        self.ids = (ctypes.c_int32 * 4096)()


class LlamaVocab(Vocab):
    """A vocabulary over llama.cpp's own tokenizer, by way of llama-cpp-python.

    Special are the ids that llama.cpp marks as control, unknown or unused, and those
    that end a generation. What it marks as user-defined is cut out of every text before
    anything else is split, also out of prompts and choices; such an id is text, and
    stands in the trie. An ordinary word that llama.cpp takes for an end marker (`</s>`
    in Qwen 2) is special; a choice that needs it is refused.

    Some vocabularies let a special id swallow the white space after it (Phi-3). Then
    the white space at the end of a prompt is gone after such an id, as it always is
    there, but a choice keeps its own.

    Parameters
    ----------
    pointer : int
        The address of a ``llama_vocab``.
    keep_alive : object, optional
        Something that keeps the model in memory; it is held, not used.

    Notes
    -----
    May be used from several threads, and in a forked child: llama.cpp's tokenizers are
    thread-safe, and each thread has its own buffers. There is no lock that a thread
    could hold while the process forks.
    """

    def __init__(self, pointer: int, *, keep_alive: object = None) -> None:
        import llama_cpp

        self._llama = llama_cpp
        self._pointer = pointer
        self._keep_alive = keep_alive
        self._special_bits = (
            llama_cpp.LLAMA_TOKEN_ATTR_CONTROL
            | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
            | llama_cpp.LLAMA_TOKEN_ATTR_UNUSED
        )
        self._buffers = _Buffers()
        self._to_piece = function_address(llama_cpp.llama_cpp, "llama_token_to_piece")
        self._prompts = PromptMemo(lambda text: self._raw(text, True), self._borders)
        bos = llama_cpp.llama_vocab_bos(pointer)
        super().__init__(
            llama_cpp.llama_vocab_n_tokens(pointer),
            bos=bos if bos >= 0 else None,
            adds_bos=llama_cpp.llama_vocab_get_add_bos(pointer),
        )
        self._letters = self._find_letters()

    def _encode(self, text: str, special: bool) -> list[int]:
        return self._prompts.encode(text) if special else self._raw(text, False)

    def _raw(self, text: str, special: bool) -> list[int]:
        if self._letters is not None:
            self._letters.check(text, special)
        data = text.encode()
        ids = self._buffers.ids
        n = self._tokenize(data, ids, special)
        if n < 0:
            if n == _INT32_MIN:
                raise InvalidArgument(f"a text of {len(data)} bytes is too long")
            ids = (ctypes.c_int32 * -n)()
            n = self._tokenize(data, ids, special)
        return ids[:n]

    def _tokenize(
        self, data: bytes, ids: ctypes.Array[ctypes.c_int32], special: bool
    ) -> int:
        """Fill a buffer with ids; return how many, or minus how many there are."""
        return int(
            self._llama.llama_tokenize(
                self._pointer, data, len(data), ids, len(ids), False, special
            )
        )

    def _piece(self, token: int) -> bytes:
        return piece(self._to_piece, self._pointer, token)

    def _is_special(self, token: int) -> bool:
        return bool(self._attribute(token) & self._special_bits) or bool(
            self._llama.llama_vocab_is_eog(self._pointer, token)
        )

    def _find_eog(self) -> Iterable[int]:
        is_eog = function_address(self._llama.llama_cpp, "llama_vocab_is_eog")
        found: list[int] = flagged(is_eog, self._pointer, self.n_vocab).tolist()
        return found

    def _attributes(self) -> NDArray[np.uint32]:
        get_attr = function_address(self._llama.llama_cpp, "llama_vocab_get_attr")
        return attributes(get_attr, self._pointer, self.n_vocab)

    def _find_letters(self) -> Letters | None:
        """Return what can be written, where that is not any text."""
        llama = self._llama
        if llama.llama_vocab_type(self._pointer) != llama.LLAMA_VOCAB_TYPE_SPM:
            return None
        found = self._attributes()
        if np.count_nonzero(found & llama.LLAMA_TOKEN_ATTR_BYTE) >= 256:
            return None
        texts: dict[bool | None, list[str]] = {None: [], False: [], True: []}
        get_text = llama.llama_vocab_get_text
        for token, kind in enumerate(found.tolist()):
            special = None
            if kind & (llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN):
                special = True
            elif kind & llama.LLAMA_TOKEN_ATTR_USER_DEFINED:
                special = False
            text = get_text(self._pointer, token).decode("utf-8", "replace")
            texts[special].append(text)
        letters = Letters(texts[None] + texts[False], texts[False], texts[True])
        return None if letters.complete else letters

    def _borders(self) -> Borders:
        """Find what is cut out of a text before anything else."""
        found = self._attributes()
        is_control = found & self._llama.LLAMA_TOKEN_ATTR_CONTROL != 0
        # The unknown id may stand for text as well as for its own name.
        kinds = self._llama.LLAMA_TOKEN_ATTR_USER_DEFINED
        kinds |= self._llama.LLAMA_TOKEN_ATTR_UNKNOWN
        control = np.flatnonzero(is_control).tolist()
        others = np.flatnonzero(~is_control & (found & kinds != 0)).tolist()
        get_text, pointer = self._llama.llama_vocab_get_text, self._pointer
        texts = {
            token: get_text(pointer, token).decode("utf-8", "replace")
            for token in (*control, *others)
        }
        return Borders(
            {token: texts[token] for token in control},
            [texts[token] for token in others],
        )

    @property
    def eos(self) -> int | None:
        """The id that the model file names as the end of a text."""
        token = int(self._llama.llama_vocab_eos(self._pointer))
        return token if token >= 0 else None

    def _attribute(self, token: int) -> int:
        return int(self._llama.llama_vocab_get_attr(self._pointer, token))

    def _contents(self) -> tuple[list[bytes], list[int]]:
        # The texts of the model file, by calls without a frame of Python in between:
        # 0.25 s for 262,144 ids, against 0.6 s with `_piece`.
        ids, all_ids = repeat(self._pointer), range(self.n_vocab)
        texts = [*map(self._llama.llama_vocab_get_text, ids, all_ids)]
        found = self._attributes()
        special = np.flatnonzero(found & self._special_bits).tolist()
        user_defined = self._llama.LLAMA_TOKEN_ATTR_USER_DEFINED
        cut_out = np.flatnonzero(found & user_defined).tolist()
        return texts, flavour.attributes(self.n_vocab, [*special, *self.eog], cut_out)

    def _flavour(self) -> str:
        return flavour.sampled(lambda text: self._encode(text, False))
