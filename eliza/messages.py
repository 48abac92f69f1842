"""What chat messages are: mappings with a role and a content."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeGuard

from eliza.errors import InvalidArgument, InvalidType

__all__ = ["Message", "checked", "is_messages"]

#: What a role may be: the template may make a control token of it.
ROLE = re.compile(r"\w[\w.-]*")


class Message(NamedTuple):
    """One message of a chat."""

    role: str
    content: str


def is_messages(prompt: object) -> TypeGuard[Sequence[Mapping[str, str]]]:
    """Say whether a prompt is meant as chat messages.

    Parameters
    ----------
    prompt : object
        What was given as a prompt.

    Returns
    -------
    bool
        True for a list or tuple that begins with a mapping, and for a mapping, which
        `ChatTemplate` refuses with a better message than anything else would.
    """
    if isinstance(prompt, (list, tuple)):
        return bool(prompt) and isinstance(prompt[0], Mapping)
    return isinstance(prompt, Mapping)


def checked(messages: object) -> list[Message]:
    """Return messages after checking their shape.

    Parameters
    ----------
    messages : object
        A list or tuple of mappings with a "role" and a "content".

    Returns
    -------
    list of Message

    Raises
    ------
    InvalidType, InvalidArgument
        They are something else; the message names which, as ``messages[i]``.
    """
    if not isinstance(messages, (list, tuple)):
        shown = f"got {reprlib.repr(messages)}"
        if isinstance(messages, Mapping):
            shown += "; put it into a list"
        raise InvalidType(f"messages must be a list of mappings; {shown}")
    if not messages:
        raise InvalidArgument("messages is empty; give at least one message")
    return [
        _checked_message(message, f"messages[{i}]")
        for i, message in enumerate(messages)
    ]


def _checked_message(message: object, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidType(
            f"{where} must be a mapping with a role and a content; "
            f"got {reprlib.repr(message)}"
        )
    for key in Message._fields:
        if key not in message:
            raise InvalidArgument(f"{where} has no {key!r}: {reprlib.repr(message)}")
        value = message[key]
        if not isinstance(value, str):
            raise InvalidType(
                f"{where}[{key!r}] must be a string; got {reprlib.repr(value)}"
            )
    for key in message:
        if key not in Message._fields:
            raise InvalidArgument(
                f"{where} has {key!r}; a message has a role and a content, nothing else"
            )
    role, content = str(message["role"]), str(message["content"])
    if not ROLE.fullmatch(role):
        raise InvalidArgument(
            f"{where}['role'] is {reprlib.repr(role)}; a role is one word, such as "
            "'system', 'user' or 'assistant'"
        )
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{where}['content'] has a lone surrogate at {error.start}, which stands "
            "for no character"
        ) from None
    return Message(role, content)
