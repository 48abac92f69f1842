"""From a Llama to a `.tflite` file with the signatures that LiteRT-LM expects."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, BinaryIO

from eliza._atomic import atomic_file
from eliza.convert.flatbuffer import pack
from eliza.convert.tflite_buffers import Buffers
from eliza.convert.tflite_graph import ModelTables
from eliza.convert.tflite_llama import add_head, add_weights, ending_at
from eliza.errors import BackendError, InvalidArgument
from eliza.files.noted import ABOUT, TOKENIZER
from eliza.tokenizers.gguf import GgufTokenizer

if TYPE_CHECKING:
    from eliza.convert.source import GgufSource

__all__ = ["DEFAULT_N_CTX", "DEFAULT_PREFILL", "DEFAULT_ROWS", "TYPES"]
__all__ += ["write_tflite", "write_tflite_to"]

TYPES = ("f32", "int8")

#: Keys and values of the whole context are there from the start: a longer one costs.
DEFAULT_N_CTX = 1024
DEFAULT_PREFILL = (8, 64)
DEFAULT_ROWS = (8, 64)


def write_tflite(
    source: GgufSource,
    out: str | os.PathLike[str],
    type: str = "int8",
    *,
    n_ctx: int | None = None,
    prefill: Iterable[int] = DEFAULT_PREFILL,
    rows: Iterable[int] = DEFAULT_ROWS,
    progress: Callable[[float], object] | None = None,
) -> None:
    """Write a `.tflite` file; it is there as a whole, or not at all.

    Its signatures are `decode` (an id, its logits) and `prefill_N` (N ids, no logits),
    which are those that LiteRT-LM uses, and for eliza `hidden_N` (N ids, and for each
    what the head is multiplied with) and `head_N` (N of those, logits for each). The
    tokenizer is noted in it as a `tokenizer.json`.

    Parameters
    ----------
    source : GgufSource
        The model.
    out : str or path
        Where it goes; what is there is replaced.
    type : {"int8", "f32"}
        How weights are stored; int8 has a scale for each row.
    n_ctx : int, optional
        The most ids that a timeline can hold; by default what the model was trained
        with, at most 1,024.
    prefill, rows : iterable of int
        For how many ids there are signatures without and with logits, from 2 to n_ctx;
        with logits there are always signatures for one.
    progress : callable, optional
        Called with the fraction that is written, in [0, 1].

    Raises
    ------
    InvalidArgument
        A number or the type is not one of those.
    NotSupported
        The tokenizer cannot be written faithfully as a `tokenizer.json`.
    BundleError
        The source cannot be read; see `GgufSource`.
    BackendError
        The file cannot be written.
    """
    tokenizer = GgufTokenizer(source.raw_tokenizer)
    try:
        with atomic_file(out, 0o666) as file:
            write_tflite_to(
                file, source, type, n_ctx, prefill, rows, tokenizer, progress
            )
    except OSError as error:
        raise BackendError(f"{os.fspath(out)} cannot be written: {error}") from error


def write_tflite_to(
    file: BinaryIO,
    source: GgufSource,
    type: str,
    n_ctx: int | None,
    prefill: Iterable[int],
    rows: Iterable[int],
    tokenizer: GgufTokenizer | None,
    progress: Callable[[float], object] | None,
) -> None:
    """Write the same to the end of an open file, where it stands.

    Without a tokenizer none is noted in it.
    """
    if type not in TYPES:
        raise InvalidArgument(f"type is {type!r}; it is one of {', '.join(TYPES)}")
    n_ctx = context_length(source, n_ctx)
    sizes = _sizes("prefill", prefill, n_ctx), _sizes("rows", rows, n_ctx)
    buffers = Buffers()
    add_weights(buffers, source, type, n_ctx)
    model = ModelTables(buffers)
    for n in sizes[0]:
        ending_at("cache", f"prefill_{n}", n, model, source, n_ctx)
    for n in (1, *sizes[1]):
        ending_at("hidden", f"hidden_{n}", n, model, source, n_ctx)
        add_head(f"head_{n}", n, model, source)
    ending_at("logits", "decode", 1, model, source, n_ctx)
    about = {"format": 1, "name": source.config.name, "type": type, "n_ctx": n_ctx}
    if tokenizer is not None:
        about |= {
            "chat_template": tokenizer.chat_template,
            "ids": {
                "bos": tokenizer.bos,
                "adds_bos": tokenizer.adds_bos,
                "eos": tokenizer.ends,
            },
        }
        model.add_metadata(TOKENIZER, zlib.compress(tokenizer.to_json()))
    model.add_metadata(ABOUT, json.dumps(about).encode())
    tables = pack(model.table(), b"TFL3")
    buffers.write(file, tables, progress or (lambda _: None))


def context_length(source: GgufSource, n_ctx: int | None) -> int:
    """Return the context length to write, after checking it."""
    trained = source.config.n_ctx_train
    if n_ctx is None:
        return min(DEFAULT_N_CTX, trained)
    if type(n_ctx) is not int or not 2 <= n_ctx <= trained:
        raise InvalidArgument(
            f"n_ctx is {n_ctx!r}; it lies in [2, {trained}], which is what the model "
            "was trained with"
        )
    return n_ctx


def _sizes(name: str, sizes: Iterable[int], n_ctx: int) -> list[int]:
    found = sorted({*sizes})
    for n in found:
        if type(n) is not int or n < 2:
            raise InvalidArgument(f"{name} has {n!r}; give whole numbers from 2 on")
    # The defaults are for any context; one that is shorter does without.
    return [n for n in found if n <= n_ctx]
