"""The vocabulary of a model: ids, their bytes, and the way texts become ids.

`Vocab` is what the rest of eliza uses. A runtime author derives from it and gives five
small methods; `Vocab.from_tokens` makes one from a plain list of pieces.

>>> vocab = Vocab.from_tokens(["</s>", "Y", "es", "Yes", " ", "No"], eog=[0])
>>> vocab.encode("Yes No")
[3, 4, 5]
>>> placed = vocab.place("Yes ", ["No", "Yes"])
>>> placed.prompt_ids.tolist(), placed.trie.names
([3, 4], ('Yes', 'No'))
"""

from __future__ import annotations

import itertools
import operator
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast, overload

import numpy as np

from eliza.cache import Entry
from eliza.errors import InvalidArgument, InvalidType, NotSupported, shown
from eliza.messages import is_messages
from eliza.once import once
from eliza.placing import Placement, place

if TYPE_CHECKING:
    from eliza._pieces import Pieces
    from eliza._trie import Trie
    from eliza.cache import TrieCache
    from eliza.chat import ChatTemplate
    from eliza.spelling import Spellings

    #: What stands before an answer: text, ids or chat messages.
    Prompt = str | Iterable[int] | Sequence[Mapping[str, str]]

__all__ = ["SPELLINGS", "Placement", "Vocab"]

#: The ways in which choices can be written.
SPELLINGS = ("canonical", "all")


#: Tells one vocabulary from another within the process, also after it is gone.
_serials = itertools.count()


class _Table(dict[int, bytes]):
    """The text that each id stands for, filled as ids are met; b"" for special ids."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.specials: set[int] = set()

    def __missing__(self, token: int) -> bytes:
        index = self.vocab._checked(token, "id")
        piece = self.vocab._piece(index)
        if self.vocab._is_special(index):
            self.specials.add(token)
            piece = b""
        self[token] = piece
        return piece

    def is_special(self, token: int) -> bool:
        return not self[token] and token in self.specials

    def of(self, ids: Iterable[int]) -> list[bytes]:
        return list(map(self.__getitem__, ids))


class Vocab(ABC):
    """The ids of a model and the tokenizer that makes them from text.

    An id is *special* if it is a control id, the unknown id, unused, or ends the
    generation. Special ids stand for no text: no choice is ever written with one. What
    a vocabulary calls user-defined is text like any other, and is used wherever the
    tokenizer itself writes it.

    A derived class calls ``super().__init__`` and gives `_encode`, `_piece`,
    `_is_special` and `_find_eog`; `_contents` and `_flavour` only sharpen the
    fingerprint.

    Parameters
    ----------
    n_vocab : int
        The number of ids.
    bos : int, optional
        The id that stands at the beginning of a text.
    adds_bos : bool
        Whether a prompt begins with it.

    Attributes
    ----------
    n_vocab : int
        The number of ids.
    bos : int or None
        The id that stands at the beginning of a text.
    adds_bos : bool
        Whether a prompt begins with it.

    Notes
    -----
    A vocabulary does not change. It may be used from several threads if its `_encode`
    and `_piece` may.
    """

    def __init__(
        self, n_vocab: int, *, bos: int | None = None, adds_bos: bool = False
    ) -> None:
        self.n_vocab = n_vocab
        self.bos = bos
        self.adds_bos = adds_bos and bos is not None
        self._table = _Table(self)
        self._serial = next(_serials)

    # -- what a runtime gives ----------------------------------------------------------

    @abstractmethod
    def _encode(self, text: str, special: bool) -> list[int]:
        """Return the ids of a text, without BOS.

        With `special`, the texts of control ids become those ids; without it, they are
        letters. Raises `InvalidArgument` for what cannot be spelled.
        """

    @abstractmethod
    def _piece(self, token: int) -> bytes:
        """Return all bytes of an id that is in range."""

    @abstractmethod
    def _is_special(self, token: int) -> bool:
        """Say whether an id that is in range is special."""

    @abstractmethod
    def _find_eog(self) -> Iterable[int]:
        """Give the ids that end a generation; asked once, when first needed."""

    def _contents(self) -> tuple[list[bytes], list[int]]:
        """Give the bytes and the attributes of all ids, for the fingerprint."""
        ids = range(self.n_vocab)
        return [*map(self._piece, ids)], [*map(self._is_special, ids)]

    def _flavour(self) -> str:
        """Name the rules by which texts are split, for the fingerprint."""
        return ""

    # -- ids ---------------------------------------------------------------------------

    @once
    def eog(self) -> tuple[int, ...]:
        """The ids that end a generation, in ascending order."""
        return tuple(sorted(self._find_eog()))

    @property
    def eos(self) -> int | None:
        """The id that a chat template writes as `eos_token`: the lowest of `eog`."""
        return self.eog[0] if self.eog else None

    @once
    def text_start(self) -> bytes:
        """What the tokenizer puts before a text of its own accord: a space, or nothing.

        It does so at the beginning and after special ids, if at all.
        """
        try:
            text = self.decode(self._encode("a", False))
        except InvalidArgument:
            return b""
        return text[:-1] if text.endswith(b"a") else b""

    @once
    def fingerprint(self) -> bytes:
        """32 bytes that differ for vocabularies that differ in anything used here.

        SHA-256 over the number of ids, the bytes and attributes of each, the ids that
        begin and end a text, and the rules by which texts are split. A tokenizer has
        the same on every runtime: see `eliza.flavour`.
        """
        import hashlib  # 3 ms, and only files and shared caches need it

        pieces, attributes = self._contents()
        bos = self.bos if self.adds_bos else None  # it is not always known otherwise
        frame = (self.n_vocab, bos, self.eog, self.text_start)
        digest = hashlib.sha256(f"eliza vocab 2 {frame} {self._flavour()}\n".encode())
        digest.update(np.array([*map(len, pieces)], "<u4").tobytes())
        digest.update(np.array(attributes, "<u4").tobytes())
        digest.update(b"".join(pieces))
        return digest.digest()

    def piece(self, token: int) -> bytes:
        """Return the bytes of one id, also of a special one.

        Parameters
        ----------
        token : int
            The id.

        Returns
        -------
        bytes
            All of them; they may end within a character.

        Raises
        ------
        InvalidArgument
            The id is not in the vocabulary.
        """
        index = self._checked(token, "id")
        return self._table[index] or self._piece(index)

    def is_special(self, token: int) -> bool:
        """Say whether an id is control, unknown, unused or end-of-generation.

        Parameters
        ----------
        token : int
            The id.

        Returns
        -------
        bool
            True if the id stands for no text.

        Raises
        ------
        InvalidArgument
            The id is not in the vocabulary.
        """
        return self._table.is_special(self._checked(token, "id"))

    def _checked(self, token: int, what: str) -> int:
        try:
            index = operator.index(token)
        except TypeError:
            index = None
        if index is None or isinstance(token, bool):
            raise InvalidType(f"{what} must be an integer; got {reprlib.repr(token)}")
        if not 0 <= index < self.n_vocab:
            raise InvalidArgument(f"{what} {index} is outside 0 to {self.n_vocab - 1}")
        return index

    # -- texts -------------------------------------------------------------------------

    def encode(
        self, text: str, *, special: bool = False, bos: bool = False
    ) -> list[int]:
        """Return the ids of a text.

        Parameters
        ----------
        text : str
            The text.
        special : bool
            Whether the texts of control ids become those ids. They are letters
            otherwise.
        bos : bool
            Whether the vocabulary's BOS id comes first, if it is one that adds it. It
            is not added to ids that begin with it.

        Returns
        -------
        list of int
            The ids.

        Raises
        ------
        InvalidType
            `text` is not a string.
        InvalidArgument
            The text cannot be spelled, or holds a lone surrogate.
        """
        if not isinstance(text, str):
            raise InvalidType(f"a text must be a string; got {reprlib.repr(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{shown(text)} has a lone surrogate at {error.start}, which stands "
                "for no character"
            ) from None
        ids = self._encode(text, special)
        if bos and self.adds_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that ids stand for; special ids contribute none.

        Parameters
        ----------
        ids : iterable of int
            The ids.

        Returns
        -------
        bytes
            They may begin and end within a character.

        Raises
        ------
        InvalidArgument
            An id is not in the vocabulary.
        """
        return b"".join(map(self._table.__getitem__, ids))

    # -- choices -----------------------------------------------------------------------

    def place(
        self,
        prompt: Prompt,
        choices: Sequence[str],
        suffix: str = "",
        cache: TrieCache | None = None,
        chat: ChatTemplate | None = None,
    ) -> Placement:
        """Find the ids of each choice as the tokenizer writes it after a prompt.

        The ids of a choice are those it has within prompt + choice + suffix. Where
        the tokenizer merges across the end of the prompt, the trie starts earlier and
        its leaves begin with the rest of the prompt; where it merges into the suffix,
        a leaf ends with the merged id. Only the tokenizer's own spelling counts:
        other ids that would give the same text are not in the trie. A choice that
        others continue ends with the next id of the suffix, or, after the suffix,
        with an end-of-generation id.

        Parameters
        ----------
        prompt : str, iterable of int, or list of messages
            The text before the choice; the texts of special ids in it become those
            ids, and BOS comes first if the vocabulary adds it. Or ids, which are taken
            as they are. Or chat messages, which `chat` writes.
        choices : sequence of str
            The texts, byte for byte: a leading space is part of a choice, and no
            special id is made from its text. The same text twice is one choice.
        suffix : str
            The text that follows each choice, without special ids. Leave it out if the
            answer ends with the choice.
        cache : TrieCache, optional
            Where the trie is kept. When the same choices come again after a prompt with
            the same end, nothing but the prompt is tokenized.
        chat : ChatTemplate, optional
            The template for messages, such as `Model.chat`.

        Returns
        -------
        Placement
            The ids before the root, the trie and the order of its leaves.

        Raises
        ------
        InvalidArgument
            A choice is empty, cannot be written byte for byte, would need a special
            id, or has the ids of another; there are no choices; no id of the prompt
            is left before them.
        InvalidType
            The prompt, a choice or the suffix has a wrong type.
        """
        ids = self.prompt_ids(prompt, chat)
        return place(self, ids, choices, suffix, rooted=True, cache=cache)

    @overload
    def trie(
        self,
        names: Sequence[str],
        prefix: str = "",
        suffix: str = "",
        spelling: Literal["canonical"] = "canonical",
        cache: TrieCache | None = None,
    ) -> Trie: ...

    @overload
    def trie(
        self,
        names: Sequence[str],
        prefix: str = "",
        suffix: str = "",
        *,
        spelling: Literal["all"],
        cache: TrieCache | None = None,
    ) -> Spellings: ...

    def trie(
        self,
        names: Sequence[str],
        prefix: str = "",
        suffix: str = "",
        spelling: str = "canonical",
        cache: TrieCache | None = None,
    ) -> Trie | Spellings:
        """Make a trie of texts as the tokenizer writes them after a prefix.

        Parameters
        ----------
        names : sequence of str
            The texts.
        prefix : str
            What stands before each; it is not parsed for special ids, and no BOS is
            added. Where a merge crosses its end, the leaves begin with the rest of it
            (`place` tells how much).
        suffix : str
            What follows each.
        spelling : {"canonical", "all"}
            "canonical": the ids that the tokenizer writes. "all": those and every other
            sequence of ids with the same bytes, from the same root on.
        cache : TrieCache, optional
            Where the trie is kept.

        Returns
        -------
        Trie or Spellings
            Its names are the texts.

        Raises
        ------
        InvalidArgument, InvalidType
            As `place`.
        """
        if spelling not in SPELLINGS:
            raise InvalidArgument(f"spelling is {spelling!r}; it is one of {SPELLINGS}")
        ids = self.encode(prefix)
        placed = place(self, ids, names, suffix, rooted=False, cache=cache)
        if spelling == "canonical":
            return placed.trie
        return self.respell(placed, suffix, cache)

    def respell(
        self, placed: Placement, suffix: str = "", cache: TrieCache | None = None
    ) -> Spellings:
        """Compile every spelling of placed choices.

        Parameters
        ----------
        placed : Placement
            What `place` returned.
        suffix : str
            The suffix that it was given.
        cache : TrieCache, optional
            Where the result is kept.

        Returns
        -------
        Spellings
            Its root is that of `placed.trie`, with the tokenizer's own spelling among
            the others; its names are the same, in the order of their bytes.
        """
        from eliza.spelling import Spellings  # most vocabularies never need it

        names = placed.trie.names or ()
        lead = self.decode(placed.trie.tokens(0))[: placed.overlap]

        def build() -> Entry[Spellings]:
            spelled = Spellings.from_texts(
                self._piece_trie,
                names,
                lead=lead,
                suffix=suffix.encode(),
                exits=self.eog,
            )
            return Entry(spelled, None, spelled.nbytes)

        if cache is None:
            return build().trie
        return cache.lookup((self._serial, "all", lead, names, suffix), build).trie

    @once
    def _piece_trie(self) -> Pieces:
        """The bytes of the ids that stand for text."""
        from eliza._pieces import Pieces

        piece, is_special = self._piece, self._is_special
        ids = range(self.n_vocab)
        return Pieces([b"" if is_special(i) else piece(i) for i in ids])

    def prompt_ids(self, prompt: Prompt, chat: ChatTemplate | None = None) -> list[int]:
        """Return the ids of a prompt.

        Parameters
        ----------
        prompt : str, iterable of int, or list of messages
            Text, in which the texts of special ids become those ids, and before which
            BOS comes if the vocabulary adds it; or ids, which are checked; or chat
            messages, whose contents are never parsed for special ids.
        chat : ChatTemplate, optional
            The template for messages.

        Returns
        -------
        list of int

        Raises
        ------
        InvalidType, InvalidArgument
            It is none of them, or an id is not in the vocabulary; the message names
            which.
        NotSupported
            Messages, but no template; or see `ChatTemplate.ids`.
        """
        if isinstance(prompt, str):
            return self.encode(prompt, special=True, bos=True)
        if is_messages(prompt):
            if chat is None:
                raise NotSupported(
                    "messages are written by a model's template: pass chat=model.chat, "
                    "or the prompt as text"
                )
            return chat.ids(prompt)
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Iterable):
            raise InvalidType(
                "a prompt must be a string, ids or messages; got "
                f"{reprlib.repr(prompt)}"
            )
        if isinstance(prompt, np.ndarray):
            ids: list[int] = np.atleast_1d(prompt).tolist()
        else:
            ids = list(cast("Iterable[int]", prompt))
        # One by one, at five times the cost, only for what is wrong or no plain int.
        plain = {*map(type, ids)} == {int} and min(ids) >= 0 and max(ids) < self.n_vocab
        if plain:
            return ids
        return [self._checked(token, f"prompt[{i}]:") for i, token in enumerate(ids)]

    @staticmethod
    def from_tokens(
        pieces: Sequence[str | bytes],
        control: Iterable[int] = (),
        eog: Iterable[int] = (),
        bos: int | None = None,
        encode: Callable[[str, bool], list[int]] | None = None,
    ) -> Vocab:
        """Make a vocabulary from a list of pieces, for tests and runtime authors.

        Parameters
        ----------
        pieces : sequence of str or bytes
            What each id stands for; a str means its UTF-8 bytes.
        control : iterable of int
            Ids that are never made from text.
        eog : iterable of int
            Ids that end a generation; they are control ids as well.
        bos : int, optional
            The id put before a prompt; it is a control id as well.
        encode : callable, optional
            ``encode(text, special)`` returns the ids of a text. By default, the
            longest piece that matches is taken at each place, and the lowest id of
            equal pieces.

        Returns
        -------
        Vocab
            The vocabulary.

        Raises
        ------
        InvalidArgument
            An id is not in the list.
        """
        from eliza.listed import ListVocab  # it derives from this class

        return ListVocab(pieces, control, eog, bos, encode)
