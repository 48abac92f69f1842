"""`python -m eliza.conformance NAME MODEL`: a table of what a runtime keeps."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from eliza.backends import REGISTRY
from eliza.conformance import check, select
from eliza.errors import ElizaError, InvalidArgument
from eliza.files.bundle import Bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eliza.backends.base import Backend

__all__ = ["main"]

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0 nothing failed, 1 something did, 2 usage, or the backend could not be made.
    """
    parser = argparse.ArgumentParser(
        prog="python -m eliza.conformance",
        description="Ask a runtime all that eliza.backends.base says.",
        epilog="Exit codes: 0 nothing failed, 1 something did, 2 usage, or the backend "
        "could not be made. docs/backends.md says what is asked.",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="llama.cpp, litert, mlx, scripted, or module:factory of your own",
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a model file or folder"
    )
    parser.add_argument(
        "--n-ctx", type=int, default=512, metavar="N", help="context length (512)"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for the backend, such as kv_type=f32; VALUE is JSON, or else a text",
    )
    parser.add_argument("--only", metavar="PATTERN", help="checks to run: tree, rows.*")
    parser.add_argument(
        "--exact", action="store_true", help="logits are equal to the last bit"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        metavar="X",
        help="how far logits may lie apart (1e-3, for f32; 1.5 for 4-bit weights)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", action="store_true", help="print the rules and stop")
    if argv is None:
        argv = sys.argv[1:]
    try:
        return _run(parser, argv)
    except BrokenPipeError:  # who reads the output had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _run(parser: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    if "--list" in argv:
        print("\n".join(f"{one.name}: {one.text}" for one in select()), flush=True)
        return EXIT_OK
    arguments = parser.parse_args(argv)
    try:
        factory = find(arguments.name, arguments.model, arguments)
        select(arguments.only)
        factory().close()  # what cannot be made at all fails here, and not in a check
    except (ElizaError, OSError) as error:
        print(f"eliza.conformance: {error}", file=sys.stderr)
        return EXIT_USAGE
    except Exception:  # whoever writes a backend wants to see where
        traceback.print_exc()
        print("eliza.conformance: the backend could not be made", file=sys.stderr)
        return EXIT_USAGE
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    try:
        report = check(
            factory,
            only=arguments.only,
            exact=arguments.exact,
            tolerance=arguments.tolerance,
            on_result=None
            if arguments.json
            else lambda result: print(result.line(colour=colour), flush=True),
        )
    except InvalidArgument as error:
        print(f"eliza.conformance: {error}", file=sys.stderr)
        return EXIT_USAGE
    if arguments.json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        print(f"{report.head()}\n{report.summary()}")
    return EXIT_OK if report.ok else EXIT_FAILED


def find(
    name: str, model: str | None, arguments: argparse.Namespace
) -> Callable[[], Backend]:
    """Return what makes the backend that a name means.

    Raises
    ------
    InvalidArgument
        There is no such backend, or its model is missing.
    """
    options = dict(_option(text) for text in arguments.option)
    options["n_ctx"] = arguments.n_ctx
    if name == "scripted":
        from eliza.conformance.scripted import scripted_backend

        return lambda: scripted_backend(**options)
    make = _imported(name) if ":" in name else _registered(name)
    if model is None:
        raise InvalidArgument(f"give the model for {name}: a path")
    return lambda: make(model, **options)


def _registered(name: str) -> Callable[..., Any]:
    """Return what opens a model in the backend that is registered under a name."""
    REGISTRY.register_builtins()
    factory = REGISTRY.get(name)
    if factory is None:
        raise InvalidArgument(
            f"backend {name!r} is not known; there are 'scripted', "
            f"{', '.join(map(repr, REGISTRY.names))}, and 'module:factory' for your own"
        )
    return lambda model, **options: factory.open(Bundle.of(model), **options)


def _imported(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"{name} cannot be imported: {error}") from error
    return found


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InvalidArgument(f"--option is {text!r}; write KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


if __name__ == "__main__":
    sys.exit(main())
