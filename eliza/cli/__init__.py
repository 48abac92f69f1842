"""The `eliza` command; a module of this package for each verb."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from eliza.errors import ElizaError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXIT_ABSTAINED", "EXIT_MODEL", "EXIT_OK", "EXIT_USAGE", "main"]

EXIT_OK = 0
EXIT_ABSTAINED = 1
EXIT_USAGE = 2
EXIT_MODEL = 3
EXIT_INTERRUPTED = 130


class _Version(argparse.Action):
    """Print the version, which takes long to find out, when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it."""
        from eliza import __version__

        print(f"eliza {__version__}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
        0 answered, 1 abstained, 2 usage, 3 model or file error, 130 interrupted.
    """
    from eliza.cli import choose, convert, demo, trie

    parser = argparse.ArgumentParser(
        prog="eliza",
        description="Make a local language model answer with one of given choices.",
        epilog="Exit codes: 0 answered, 1 abstained, 2 usage, 3 model or file error, "
        "130 interrupted.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the version and stop"
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    choose.add_parser(verbs)
    convert.add_parser(verbs)
    demo.add_parser(verbs)
    trie.add_parser(verbs)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print("eliza: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except InvalidArgument as error:
        print(f"eliza: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        # Who reads the output had enough, as `head` does; nor will it read the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except UnicodeEncodeError as error:
        print(
            f"eliza: what there is to say cannot be written in {error.encoding}; set "
            "PYTHONIOENCODING=utf-8",
            file=sys.stderr,
        )
        return EXIT_MODEL
    except (ElizaError, OSError) as error:
        print(f"eliza: {error}", file=sys.stderr)
        return EXIT_MODEL
