"""A vocabulary from a list of pieces: what `Vocab.from_tokens` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from eliza.errors import InvalidArgument, shown
from eliza.vocab import Vocab

__all__ = ["ListVocab"]


class _Longest:
    """Finds the longest piece at a place, and the lowest id of equal pieces."""

    def __init__(self, pieces: list[bytes], ids: Iterable[int]) -> None:
        self.ids: dict[bytes, int] = {}
        for i in ids:
            self.ids.setdefault(pieces[i], i)
        self.sizes = sorted({len(piece) for piece in self.ids if piece}, reverse=True)

    def at(self, data: bytes, at: int) -> int | None:
        found = (self.ids.get(data[at : at + size]) for size in self.sizes)
        return next((token for token in found if token is not None), None)


class ListVocab(Vocab):
    """The vocabulary behind `Vocab.from_tokens`."""

    def __init__(
        self,
        pieces: Sequence[str | bytes],
        control: Iterable[int],
        eog: Iterable[int],
        bos: int | None,
        encode: Callable[[str, bool], list[int]] | None,
    ) -> None:
        super().__init__(len(pieces), bos=bos, adds_bos=bos is not None)
        self._pieces = [p.encode() if isinstance(p, str) else bytes(p) for p in pieces]
        self._eog = {self._checked(token, "eog id") for token in eog}
        self._control = {self._checked(token, "control id") for token in control}
        self._control |= self._eog
        if bos is not None:
            self._control.add(self._checked(bos, "bos id"))
        self._own_encode = encode
        ids = range(self.n_vocab)
        self._text = _Longest(self._pieces, (i for i in ids if i not in self._control))
        self._marks = _Longest(self._pieces, sorted(self._control))

    def _encode(self, text: str, special: bool) -> list[int]:
        if self._own_encode is not None:
            try:
                return list(self._own_encode(text, special))
            except (ValueError, LookupError) as error:
                raise InvalidArgument(f"{shown(text)}: {error!r}") from error
        data = text.encode()
        ids: list[int] = []
        at = 0
        while at < len(data):
            token = self._marks.at(data, at) if special else None
            if token is None:
                token = self._text.at(data, at)
            if token is None:
                rest = data[at:].decode(errors="replace")
                raise InvalidArgument(
                    f"the vocabulary has no piece for {rest[0]!r} (byte "
                    f"{data[at]:#04x}) in {shown(text)}"
                )
            ids.append(token)
            at += len(self._pieces[token])
        return ids

    def _piece(self, token: int) -> bytes:
        return self._pieces[token]

    def _is_special(self, token: int) -> bool:
        return token in self._control

    def _find_eog(self) -> Iterable[int]:
        return self._eog

    def _flavour(self) -> str:
        own = self._own_encode
        if own is None:
            return "longest match"
        return (
            f"{own.__module__}.{getattr(own, '__qualname__', type(own).__qualname__)}"
        )
