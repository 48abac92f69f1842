"""`eliza convert`: from a GGUF file to what other runtimes read."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eliza.errors import InvalidArgument, shown

if TYPE_CHECKING:
    from eliza.convert.source import GgufSource

    Progress = Callable[[float], object]

__all__ = ["add_parser"]

#: Endings of files that are something else, and no folder.
_FOREIGN = (".gguf", ".bin", ".onnx", ".safetensors", ".task", ".zip", ".npz", ".json")


def add_parser(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "convert",
        help="convert a GGUF file for LiteRT or MLX",
        description="Convert a model of the llama architecture. What is written is "
        "there as a whole, or not at all.",
    )
    parser.add_argument("source", metavar="MODEL.gguf", help="the model")
    parser.add_argument(
        "out",
        metavar="OUT",
        help="what to write: a .tflite file, a .litertlm file, or a folder for MLX",
    )
    parser.add_argument(
        "--type",
        metavar="TYPE",
        help="number type of the weights: int8 (the default for files) or f32 (that "
        "for folders, which can also be f16)",
    )
    parser.add_argument(
        "--n-ctx",
        type=int,
        metavar="N",
        help="context length of a file, in tokens; by default 1024, or what the model "
        "was trained with if that is less",
    )
    parser.add_argument(
        "--prefill",
        type=_sizes,
        metavar="N,N",
        help="how many tokens the passes of a file over a prompt take; by default 8,64",
    )
    parser.add_argument(
        "--rows",
        type=_sizes,
        metavar="N,N",
        help="how many tokens the passes of a file take that give logits for each; by "
        "default 8,64",
    )
    parser.set_defaults(run=run)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of whole numbers, such as 8,64"
        ) from None


def run(arguments: argparse.Namespace) -> int:
    """Carry the verb out; return the exit code."""
    from eliza.convert.source import GgufSource

    source, out = Path(arguments.source), Path(arguments.out)
    _check(source, out)
    start = time.perf_counter()
    with GgufSource(source) as model, _progress(f"writing {out.name}") as progress:
        _write(model, out, arguments, progress)
    size = sum(f.stat().st_size for f in _files(out)) / 1e6
    print(
        f"{out}: {size:,.1f} MB, {_described(model)}, in "
        f"{time.perf_counter() - start:.1f} s"
    )
    return 0


def _check(source: Path, out: Path) -> None:
    """Refuse what would write over the model, or something with a wrong ending."""
    if out.suffix.lower() in _FOREIGN:
        raise InvalidArgument(
            f"{out} ends with {shown(out.suffix)}; give a name with .tflite or "
            ".litertlm, or that of a folder for MLX"
        )
    if out.exists() and source.exists() and os.path.samefile(source, out):
        raise InvalidArgument(f"{out} is the model itself; give another name")


def _write(
    model: GgufSource, out: Path, arguments: argparse.Namespace, progress: Progress
) -> None:
    sizes = {
        name: getattr(arguments, name)
        for name in ("n_ctx", "prefill", "rows")
        if getattr(arguments, name) is not None
    }
    kind = out.suffix.lower()
    if kind == ".tflite":
        from eliza.convert.tflite import write_tflite

        write_tflite(model, out, arguments.type or "int8", progress=progress, **sizes)
    elif kind == ".litertlm":
        from eliza.convert.litertlm import write_litertlm

        write_litertlm(model, out, arguments.type or "int8", progress=progress, **sizes)
    else:
        if sizes:
            option = next(iter(sizes)).replace("_", "-")
            raise InvalidArgument(
                f"--{option} is for .tflite and .litertlm files; a folder for MLX has "
                "no fixed sizes"
            )
        from eliza.convert.mlx_folder import write_mlx

        write_mlx(model, out, arguments.type or "f32", progress)


def _described(model: GgufSource) -> str:
    config = model.config
    name = f"{config.name}, " if config.name else ""
    return f"{name}{config.n_layers} layers, {config.n_vocab:,} tokens"


def _files(out: Path) -> list[Path]:
    return [*out.iterdir()] if out.is_dir() else [out]


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """Show how far it is: on a terminal, with a bar if the package rich is there."""
    if not sys.stderr.isatty():
        yield lambda fraction: None
    elif find_spec("rich") is not None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=1.0)
            yield lambda fraction: bar.update(task, completed=fraction)
    else:

        def line(fraction: float) -> None:
            print(f"\r{title}: {fraction:4.0%}", end="", file=sys.stderr, flush=True)

        try:
            yield line
        finally:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
