"""Choices with descriptions, as text for a prompt."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping

from eliza.errors import InvalidArgument, InvalidType

__all__ = ["describe_choices"]


def describe_choices(
    descriptions: Mapping[str, str], item: str = "- {name}: {description}\n"
) -> str:
    r"""Write choices and what they mean, as a part of a prompt.

    Parameters
    ----------
    descriptions : mapping of str to str
        The name of each choice, and what it means, in the order in which they are
        written.
    item : str
        How one is written: a format with `{name}` and, if wanted, `{description}`.

    Returns
    -------
    str
        The items, one after the other.

    Raises
    ------
    InvalidType
        It is not a mapping, or a name, a description or `item` is not a string.
    InvalidArgument
        There are none, or `item` is not a format of this kind.

    Examples
    --------
    >>> actions = {"REPLY": "answer the user", "IGNORE": "say nothing"}
    >>> describe_choices(actions)
    '- REPLY: answer the user\n- IGNORE: say nothing\n'
    >>> describe_choices(actions, item="{name} ({description}) ")
    'REPLY (answer the user) IGNORE (say nothing) '
    """
    if not isinstance(descriptions, Mapping):
        raise InvalidType(
            "descriptions must be a mapping from name to description; "
            f"got {reprlib.repr(descriptions)}"
        )
    if not isinstance(item, str):
        raise InvalidType(f"item must be a string; got {reprlib.repr(item)}")
    if not descriptions:
        raise InvalidArgument("descriptions is empty; give at least one choice")
    for name, description in descriptions.items():
        if not isinstance(name, str) or not isinstance(description, str):
            raise InvalidType(
                "names and descriptions must be strings; got "
                f"{reprlib.repr(name)}: {reprlib.repr(description)}"
            )
    return "".join(_written(item, name, text) for name, text in descriptions.items())


def _written(item: str, name: str, description: str) -> str:
    try:
        text = item.format(name=name, description=description)
    except (LookupError, ValueError, AttributeError) as error:
        text, why = "", f" ({error!r})"
    else:
        why = ""
    if name not in text:
        raise InvalidArgument(
            f"item is {item!r}; it must be a format with {{name}}, and with "
            f"{{description}} or not{why}"
        )
    return text
