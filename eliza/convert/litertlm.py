"""From a Llama to a `.litertlm` file, which LiteRT-LM opens by itself."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from eliza._atomic import atomic_file
from eliza.convert.flatbuffer import Node, Number, Table, Tables, Text, pack
from eliza.convert.tflite import (
    DEFAULT_PREFILL,
    DEFAULT_ROWS,
    context_length,
    write_tflite_to,
)
from eliza.errors import BackendError
from eliza.files import protobuf
from eliza.files.litertlm import (
    BLOCK,
    HEADER_AT,
    MAGIC,
    PREFILL_DECODE,
    VERSION,
    SectionKind,
)
from eliza.files.noted import LIST_SAFE
from eliza.tokenizers.gguf import GgufTokenizer

if TYPE_CHECKING:
    from eliza.convert.source import GgufSource

__all__ = ["write_litertlm"]

_TEXT = 9  # the kind of a value that is a text


def write_litertlm(
    source: GgufSource,
    out: str | os.PathLike[str],
    type: str = "int8",
    *,
    n_ctx: int | None = None,
    prefill: Iterable[int] = DEFAULT_PREFILL,
    rows: Iterable[int] = DEFAULT_ROWS,
    progress: Callable[[float], object] | None = None,
) -> None:
    """Write a `.litertlm` file; it is there as a whole, or not at all.

    It holds the model as `write_tflite` writes it, the tokenizer, the ids that begin
    and end a text, and the chat template.

    Parameters
    ----------
    source, out, type, n_ctx, prefill, rows, progress
        As for `write_tflite`.

    Raises
    ------
    NotSupported
        The tokenizer cannot be written faithfully as a `tokenizer.json`.
    InvalidArgument, BundleError, BackendError
        As for `write_tflite`.
    """
    tokenizer = GgufTokenizer(source.raw_tokenizer)
    raw = tokenizer.to_json()
    smaller = struct.pack("<Q", len(raw)) + zlib.compress(raw)
    about = _llm_metadata(tokenizer, context_length(source, n_ctx))
    small = [
        _Section(SectionKind.LLM_METADATA, about),
        _Section(SectionKind.HUGGING_FACE_ZLIB, smaller),
    ]
    model = _Section(SectionKind.TFLITE_MODEL, None, {"model_type": PREFILL_DECODE})
    sections = [*small, model]
    header = pack(_header(sections))
    start = bytearray(MAGIC) + struct.pack("<III", *VERSION)
    start += struct.pack("<4xQ", HEADER_AT + len(header))
    try:
        with atomic_file(out, 0o666) as file:
            file.seek(HEADER_AT + len(header))
            for section in small:
                section.begin.value = file.seek(-(-file.tell() // BLOCK) * BLOCK)
                file.write(section.data or b"")
                section.end.value = file.tell()
            model.begin.value = file.seek(-(-file.tell() // BLOCK) * BLOCK)
            write_tflite_to(file, source, type, n_ctx, prefill, rows, None, progress)
            model.end.value = file.seek(0, os.SEEK_END)
            for section in sections:
                section.begin.patch(header)
                section.end.patch(header)
            file.seek(0)
            file.write(start + header)
    except OSError as error:
        raise BackendError(f"{os.fspath(out)} cannot be written: {error}") from error


class _Section:
    """A section, and the numbers of the header that say where it lies."""

    def __init__(
        self, kind: int, data: bytes | None, items: dict[str, str] | None = None
    ) -> None:
        self.kind = kind
        self.data = data
        self.items = items or {}
        self.begin = Number("u64", 0)
        self.end = Number("u64", 0)

    def table(self) -> Table:
        fields: dict[int, Node] = {
            0: Tables([_item(key, value) for key, value in self.items.items()]),
            1: self.begin,
            2: self.end,
            3: Number("u8", self.kind),
        }
        return Table(fields)


def _header(sections: list[_Section]) -> Table:
    listed = Table({0: Tables([section.table() for section in sections])})
    return Table({0: Table({0: Tables([_item("Authors", "eliza")])}), 1: listed})


def _item(key: str, value: str) -> Table:
    return Table({0: Text(key), 1: Number("u8", _TEXT), 2: Table({0: Text(value)})})


def _llm_metadata(tokenizer: GgufTokenizer, n_ctx: int) -> bytes:
    """Write the message `LlmMetadata` of LiteRT-LM."""
    data = b""
    if tokenizer.adds_bos and tokenizer.bos is not None:
        data += protobuf.message(1, _one_id(tokenizer.bos))
    for token in tokenizer.ends:
        data += protobuf.message(2, _one_id(token))
    data += protobuf.number(5, n_ctx)
    data += protobuf.message(6, protobuf.message(1, b""))  # a model of no family
    if tokenizer.chat_template:
        template = LIST_SAFE + tokenizer.chat_template
        data += protobuf.message(7, template.encode(errors="replace"))
    # Whether it supports thinking, and calls of functions: LiteRT-LM wants it said.
    return data + protobuf.number(11, 0) + protobuf.number(12, 0)


def _one_id(token: int) -> bytes:
    """Write the message `TokenUnion` with the message `TokenIds`."""
    return protobuf.message(1, protobuf.number(1, token))
