"""The vocabulary of a model: its tokenizer, and the ids of choices where they stand.

`Vocab` is what the rest of eliza uses. A runtime author derives from it and gives four
small methods; `Vocab.from_tokens` makes one from a plain list of pieces.

>>> vocab = Vocab.from_tokens(["</s>", "Y", "es", "Yes", " ", "No"], eog=[0])
>>> vocab.encode("Yes No")
[3, 4, 5]
>>> placed = vocab.place("Yes ", ["No", "Yes"])
>>> placed.prompt_ids.tolist(), placed.trie.names
([3, 4], ('Yes', 'No'))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, overload

from eliza.cache import Entry
from eliza.errors import InvalidArgument
from eliza.once import once
from eliza.placing import Placement, place
from eliza.tokenizer import Tokenizer

if TYPE_CHECKING:
    from eliza._pieces import Pieces
    from eliza._trie import Trie
    from eliza.cache import TrieCache
    from eliza.chat import ChatTemplate
    from eliza.spelling import Spellings
    from eliza.tokenizer import Prompt

__all__ = ["SPELLINGS", "Placement", "Vocab"]

#: The ways in which choices can be written.
SPELLINGS = ("canonical", "all")


class Vocab(Tokenizer):
    """The ids of a model and the tokenizer that makes them from text.

    An id is *special* if it is a control id, the unknown id, unused, or ends the
    generation. Special ids stand for no text: no choice is ever written with one. What
    a vocabulary calls user-defined is text like any other, and is used wherever the
    tokenizer itself writes it.

    A derived class calls ``super().__init__`` and gives `_encode`, `_piece`,
    `_is_special` and `_find_eog`; `_contents` and `_flavour` only sharpen the
    fingerprint. They are described in `eliza.tokenizer`.

    Parameters
    ----------
    n_vocab : int
        The number of ids.
    bos : int, optional
        The id that stands at the beginning of a text.
    adds_bos : bool
        Whether a prompt begins with it.

    Notes
    -----
    A vocabulary does not change. It may be used from several threads if its `_encode`
    and `_piece` may.
    """

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
