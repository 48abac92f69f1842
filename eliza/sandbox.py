"""Templates of model files, run without trust: imported when the first one is.

A template comes with a model, from wherever that was fetched. It runs in jinja2's
immutable sandbox, where attributes of Python are out of reach, and for a bounded number
of turns of its loops.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from eliza.errors import InvalidArgument

__all__ = ["MAX_TURNS", "Sandboxed"]

#: The most turns that all loops of a template take together in one rendering. A chat
#: of 10,000 messages takes some 100,000.
MAX_TURNS = 1_000_000


class _Turns(threading.local):
    """How many turns are left to the rendering of this thread."""

    left = 0


class Sandboxed:
    """A chat template that was read once and can be rendered many times.

    The environment is that of transformers: `trim_blocks`, `lstrip_blocks`, `break`
    and `continue`, `{% generation %}`, `tojson` that keeps letters, `raise_exception`
    and `strftime_now`.

    Parameters
    ----------
    source : str
        The template.

    Raises
    ------
    InvalidArgument
        It is no template.
    """

    def __init__(self, source: str) -> None:
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _to_json
        environment.filters["counted"] = self._counted
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._turns = _Turns()
        try:
            tree = environment.parse(source)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None)
            self._template = environment.from_string(tree)
        except Exception as error:
            line = getattr(error, "lineno", None)
            where = "" if line is None else f" (line {line})"
            raise InvalidArgument(
                f"the model's chat template cannot be read: {error}{where}"
            ) from error

    def render(self, **values: Any) -> str:
        """Return the text of the template with these values.

        Raises
        ------
        InvalidArgument
            The template raised, did what the sandbox does not allow, or ran too long;
            the message has its words.
        """
        self._turns.left = MAX_TURNS
        try:
            return self._template.render(values)
        except SecurityError as error:
            raise InvalidArgument(
                f"the model's chat template was stopped: {error}"
            ) from error
        except TemplateError as error:
            raise InvalidArgument(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        except Exception as error:  # any of Python's: it is a program
            raise InvalidArgument(
                f"the model's chat template failed: {error!r}"
            ) from error

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        turns = self._turns
        for item in items:
            turns.left -= 1
            if turns.left < 0:
                raise SecurityError(f"its loops took more than {MAX_TURNS} turns")
            yield item


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, loud: what it withholds is an error, not an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        raise SecurityError(
            f"it reached for {attribute!r} of an object of type {type(obj).__name__}"
        )


class _Generation(Extension):
    """Reads over `{% generation %}`, which marks what is trained on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
