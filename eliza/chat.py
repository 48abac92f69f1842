"""Chat messages as the prompt of a model, by the template that the model brings.

The text of a chat is the template's and the users'. The control ids in it must be the
template's alone, so the text is not parsed as a whole: what a user wrote is found in it
first.

    rendered     <|im_start|>user⏎ ⟦Hi <|im_end|>⟧ <|im_end|>⏎
    control ids  ^^^^^^^^^^^^                      ^^^^^^^^^^
    runs                     user⏎Hi <|im_end|>              ⏎

The template is rendered twice: with the contents, and with marks around each of them.
Without the marks both must be the same text. Control ids are looked for in the
template's own parts, and the runs between them, letters of template and contents
together, are encoded as plain text: a tokenizer cuts a text at its control ids before
anything else, so the runs get the ids that they would have had in the whole.

>>> import eliza
>>> vocab = eliza.Vocab.from_tokens(["<|end|>", *"<|end>: Hi", "user"], eog=[0])
>>> template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
>>> chat = ChatTemplate(template, vocab)
>>> chat.ids([{"role": "user", "content": "Hi"}])
[11, 7, 8, 9, 10, 0]
>>> chat.ids([{"role": "user", "content": "Hi<|end|>"}])
[11, 7, 8, 9, 10, 1, 2, 3, 4, 5, 2, 6, 0]
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from eliza.errors import InvalidArgument, NotSupported
from eliza.messages import Message, checked

if TYPE_CHECKING:
    from eliza.sandbox import Sandboxed
    from eliza.vocab import Vocab

__all__ = ["ChatTemplate"]

#: What tokenizers take for white space around a control token.
BLANK = " \t\n\v\f\r"
#: How many of a template's own parts are remembered with their control ids.
PARTS = 64


class _Mark(NamedTuple):
    """A special id and where its text is."""

    start: int
    end: int
    token: int


class _Rendering(NamedTuple):
    """The text of a chat, and where the contents are: (start, end, message)."""

    text: str
    contents: list[tuple[int, int, int]]


class ChatTemplate:
    """The chat template of a model, and how its text becomes ids.

    Parameters
    ----------
    source : str or None
        The template, in jinja2's language as transformers speaks it; None for a model
        that has none.
    vocab : Vocab
        The model's vocabulary.

    Attributes
    ----------
    source : str or None
        The template.

    Notes
    -----
    Messages are mappings with a "role" and a "content", both strings, and nothing else.
    No control id is made from a content: `<|im_end|>` in it is plain letters. What a
    vocabulary calls user-defined is text, as everywhere.

    If the last message has the role "assistant", it is continued: the prompt ends with
    its content as it is, without what the template puts after it. Otherwise the prompt
    ends where the assistant begins to speak.

    Needs jinja2, which is imported when the first messages are rendered. The template
    runs in its immutable sandbox. May be used from several threads.
    """

    def __init__(self, source: str | None, vocab: Vocab) -> None:
        self.source = source
        self._vocab = vocab
        self._sandboxed: Sandboxed | None = None
        # The same few parts in each chat; it halves the cost of `ids`.
        self._part_marks = lru_cache(PARTS)(self._find_part_marks)
        self._swallowing: dict[int, tuple[bool, bool]] = {}

    def render(
        self, messages: Sequence[Mapping[str, str]], *, start: bool = True
    ) -> str:
        """Return the text of messages, to look at.

        Encoded as a text prompt it would turn control tokens that a content spells into
        control ids; `ids` does not.

        Parameters
        ----------
        messages, start
            As for `ids`.

        Returns
        -------
        str

        Raises
        ------
        NotSupported, InvalidArgument, InvalidType
            As for `ids`.
        """
        given = checked(messages)
        plain = self._run(given, start)
        found = self._located(given, plain, start)
        return plain if found is None else found.text

    def ids(
        self, messages: Sequence[Mapping[str, str]], *, start: bool = True
    ) -> list[int]:
        """Return the ids of messages.

        Parameters
        ----------
        messages : sequence of mappings
            The chat so far; see the notes of the class.
        start : bool
            Whether they stand at the very beginning. If not, no begin-of-sequence id is
            added, and the template's `bos_token` is empty.

        Returns
        -------
        list of int

        Raises
        ------
        NotSupported
            The model has no template, jinja2 is not installed, or the template does
            not let the last message be continued.
        InvalidArgument
            The template refuses the messages or fails; a message has a wrong shape; or
            a content spells a control token and the template changes contents, so that
            it cannot be told apart.
        InvalidType
            `messages`, a message, a role or a content has a wrong type.
        """
        given = checked(messages)
        plain = self._run(given, start)
        found = self._located(given, plain, start)
        vocab = self._vocab
        if found is None:
            ids = self._harmless(given, plain, start)
        else:
            ids = vocab.encode(found.text, special=True)
            own = self._own_marks(found)
            if self._marks(found.text, ids) != own:
                ids = self._apart(found, own)
        if start and vocab.adds_bos and vocab.bos is not None:
            ids[:0] = [vocab.bos] if ids[:1] != [vocab.bos] else []
        return ids

    # -- the text ----------------------------------------------------------------

    def _run(self, messages: Sequence[Message], start: bool) -> str:
        """Render messages with the template."""
        vocab = self._vocab
        return self._template().render(
            messages=[message._asdict() for message in messages],
            add_generation_prompt=not _continued(messages),
            bos_token=self._text_of(vocab.bos) if start else "",
            eos_token=self._text_of(vocab.eos),
            # Templates ask whether these are none, as transformers passes them.
            tools=None,
            documents=None,
        )

    def _template(self) -> Sandboxed:
        # Without a lock, which a forked child might wait for: threads that come at once
        # each compile the template, and keep any one of the results.
        if self._sandboxed is None:
            if self.source is None:
                raise NotSupported(
                    "the model has no chat template; pass the prompt as text, written "
                    "as the model was trained"
                )
            try:
                from eliza.sandbox import Sandboxed
            except ImportError as error:
                raise NotSupported(
                    "chat messages need jinja2: pip install 'eliza[chat]'; or pass "
                    f"the prompt as text ({error})"
                ) from error
            self._sandboxed = Sandboxed(self.source)
        return self._sandboxed

    def _text_of(self, token: int | None) -> str:
        if token is None:
            return ""
        return self._vocab.piece(token).decode("utf-8", "replace")

    def _located(
        self, messages: Sequence[Message], plain: str, start: bool
    ) -> _Rendering | None:
        """Find the contents in the rendered text; cut it where the last goes on.

        None if the template changes contents in a way that marks do not survive.
        """
        left, right = _unused(
            [plain, self.source or "", *(m.content for m in messages)]
        )
        for trimmed in (False, True):
            marked, bodies = [], []
            for i, (role, content) in enumerate(messages):
                before, body, after = (
                    _trimmed(content) if trimmed else ("", content, "")
                )
                bodies.append(body)
                if content or i == len(messages) - 1:  # templates ask for empty ones
                    body = f"{left}{i}{right}{body}{right}{i}{left}"
                marked.append(Message(role, before + body + after))
            try:
                text = self._run(marked, start)
            except InvalidArgument:  # it looked at a content and did not know it
                continue
            found = _unmarked(text, bodies, left, right)
            if found is None or found.text != plain:
                continue
            if not _continued(messages):
                return found
            end = max(
                (e for _, e, i in found.contents if i == len(bodies) - 1), default=0
            )
            if end:
                rest = _trimmed(messages[-1].content)[2] if trimmed else ""
                inside = [span for span in found.contents if span[1] <= end]
                return _Rendering(plain[:end] + rest, inside)
        if _continued(messages):
            raise NotSupported(
                f"messages[{len(messages) - 1}] is the assistant's and would be "
                "continued, but the model's chat template does not write its content "
                "as it is; pass the prompt as text"
            )
        return None

    # -- the ids -----------------------------------------------------------------

    def _marks(self, text: str, ids: list[int]) -> list[_Mark] | None:
        """Find the texts of the special ids; None if one stands for other text."""
        marks, at = [], 0
        for token in self._specials(ids):
            piece = self._text_of(token)
            start = text.find(piece, at)
            if start < 0 or not piece:
                return None
            at = start + len(piece)
            marks.append(_Mark(start, at, token))
        return marks

    def _specials(self, ids: list[int]) -> list[int]:
        self._vocab.decode(ids)  # which notes the special ones
        known = self._vocab._table.specials
        return [token for token in ids if token in known]

    def _own_marks(self, found: _Rendering) -> list[_Mark]:
        """Find the special ids that the template's own parts make."""
        own: list[_Mark] = []
        at = 0
        for start, end, _ in [*found.contents, (len(found.text), 0, 0)]:
            if start > at:
                marks = self._part_marks(found.text[at:start])
                own += [_Mark(at + s, at + e, token) for s, e, token in marks]
            at = end
        return own

    def _find_part_marks(self, part: str) -> list[_Mark]:
        marks = self._marks(part, self._vocab.encode(part, special=True))
        if marks is None:
            raise InvalidArgument(
                "the vocabulary cannot write what the model's chat template "
                f"says: {reprlib.repr(part)}"
            )
        return marks

    def _apart(self, found: _Rendering, own: list[_Mark]) -> list[int]:
        """Encode the runs between the template's special ids as plain text."""
        ids: list[int] = []
        at, last = 0, None
        for start, end, token in [*own, (len(found.text), 0, None)]:
            run = found.text[at:start]
            # Some special ids take the white space around them away.
            if run[:1] in BLANK and last is not None and self._swallows(last)[1]:
                run = run.lstrip(BLANK)
            if run[-1:] in BLANK and token is not None and self._swallows(token)[0]:
                run = run.rstrip(BLANK)
            letters = self._vocab.encode(run) if run else []
            bad = self._specials(letters)
            if bad:
                raise InvalidArgument(
                    f"{_whose(found, at, start)} cannot be written without the special "
                    f"id {bad[0]} ({self._text_of(bad[0])!r}), even letter by letter; "
                    "take it out"
                )
            ids += letters
            if token is not None:
                ids.append(token)
            at, last = end, token
        return ids

    def _swallows(self, token: int) -> tuple[bool, bool]:
        """Say whether an id takes away the white space before it, and after it."""
        known = self._swallowing.get(token)
        if known is None:
            encode = self._vocab.encode
            try:
                bare = encode("a")
                ids = encode(f"a {self._text_of(token)} a", special=True)
            except InvalidArgument:  # no letters or no spaces: nothing to take away
                ids = bare = []
            at = ids.index(token) if token in ids else 0
            known = (ids[:at] == bare != [], ids[at + 1 :] == bare != [])
            self._swallowing[token] = known
        return known

    def _harmless(
        self, messages: Sequence[Message], plain: str, start: bool
    ) -> list[int]:
        """Encode a text as a whole, if no content adds a special id to it.

        Where the template rewrites contents, their place in the text is not known. So
        no content may spell a special id, and there must be the same special ids in
        the text as there are with contents that are one harmless letter.
        """
        encode = self._vocab.encode
        ids = encode(plain, special=True)
        blank = [Message(message.role, "a") for message in messages]
        own = self._specials(encode(self._run(blank, start), special=True))
        for i, message in enumerate(messages):
            for token in self._specials(encode(message.content, special=True)):
                raise InvalidArgument(
                    f"messages[{i}] spells the special token {self._text_of(token)!r}, "
                    "and the model's chat template changes contents, so that it cannot "
                    "be told from the template's own; take it out, or pass the "
                    "prompt as ids"
                )
        if self._specials(ids) != own:
            raise InvalidArgument(
                "the contents change which special tokens the model's chat template "
                "writes, and it cannot be seen whether they spell one; pass the prompt "
                "as ids"
            )
        return ids


def _continued(messages: Sequence[Message]) -> bool:
    return messages[-1].role == "assistant"


def _trimmed(content: str) -> tuple[str, str, str]:
    """Split a content into white space, the rest, and white space."""
    body = content.strip()
    if not body:
        return "", "", content
    at = content.index(body)
    return content[:at], body, content[at + len(body) :]


def _unused(texts: Sequence[str]) -> tuple[str, str]:
    """Return two characters, of those kept for private use, that no text has."""
    used = set().union(*texts)
    free = (chr(c) for c in range(0x10FFFD, 0xFFFF, -1) if chr(c) not in used)
    return next(free), next(free)


def _unmarked(text: str, bodies: list[str], left: str, right: str) -> _Rendering | None:
    """Take out the pairs of marks around what they marked; None if around other text.

    A mark that lost the other one stays in the text, which then is not the plain one.
    """
    parts: list[str] = []
    contents = []
    at = size = 0
    pair = f"{left}([0-9]+){right}([^{left}{right}]*){right}([0-9]+){left}"
    for match in re.finditer(pair, text):
        i, body = int(match[1]), match[2]
        if match[1] != match[3] or body != bodies[i]:
            return None
        parts += text[at : match.start()], body
        size += match.start() - at
        contents.append((size, size + len(body), i))
        size += len(body)
        at = match.end()
    parts.append(text[at:])
    return _Rendering("".join(parts), contents)


def _whose(found: _Rendering, start: int, end: int) -> str:
    """Name the messages whose contents are in a part of a text."""
    inside = {i for s, e, i in found.contents if s < end and e > start}
    return " and ".join(f"messages[{i}]" for i in sorted(inside)) or "the chat template"
