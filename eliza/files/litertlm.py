"""`.litertlm` files: a model for LiteRT-LM with its tokenizer, in sections.

Bytes 0 to 7 are `LITERTLM`; then come the version as three numbers of four bytes, and
at byte 24 where the header ends. The header, from byte 32, is a flatbuffer that lists
the sections. Each begins at a multiple of 16 KiB.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from eliza._atomic import atomic_file
from eliza.errors import BundleError, Closed, NotSupported, shown
from eliza.files import protobuf
from eliza.files.caching import cache_folder, mark_used, tidy
from eliza.files.opened import OpenedFile
from eliza.files.tables import Malformed, TableView

__all__ = ["BLOCK", "HEADER_AT", "MAGIC", "PREFILL_DECODE", "VERSION"]
__all__ += ["LitertlmFile", "LlmMetadata", "Section", "SectionKind"]

MAGIC = b"LITERTLM"
#: The version that eliza writes; it reads all with the same first number.
VERSION = 1, 7, 0
HEADER_AT = 32
BLOCK = 16 << 10

#: What a section of a model says that it is, if it takes ids and gives logits.
PREFILL_DECODE = "tf_lite_prefill_decode"

_TEXT = 9  # the kind of a value in the list of a section that is a text
_MAX_HEADER = 16 << 20
_MAX_TOKENIZER = 256 << 20
_PIECE = 4 << 20


class SectionKind(IntEnum):
    """What a section holds."""

    GENERIC = 1
    TFLITE_MODEL = 3
    SENTENCEPIECE = 4
    LLM_METADATA = 5
    HUGGING_FACE_ZLIB = 6
    TFLITE_WEIGHTS = 7
    EMBEDDING_METADATA = 8
    EXECUTOR_METADATA = 9
    TTS_METADATA = 10
    ASR_METADATA = 11


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file.

    Attributes
    ----------
    kind : int
        A `SectionKind`, or a number that is not known here.
    begin, end : int
        Where it lies.
    model_type : str
        What the section says of a model, such as "tf_lite_prefill_decode"; or "".
    """

    kind: int
    begin: int
    end: int
    model_type: str

    @property
    def name(self) -> str:
        """What a message calls it."""
        if self.model_type:
            return self.model_type
        known = self.kind in SectionKind.__members__.values()
        return SectionKind(self.kind).name.lower() if known else f"kind {self.kind}"


@dataclass(frozen=True, slots=True)
class LlmMetadata:
    """What the file says about generating.

    Attributes
    ----------
    starts : tuple of int or str
        What a text begins with, as ids or texts of ids; usually one or none.
    stops : tuple of int or str
        What ends a generation; sequences of several ids are left out.
    max_tokens : int
        The context length; 0 if it is not said.
    template : str or None
        For chat messages, in jinja2's language.
    """

    starts: tuple[int | str, ...] = ()
    stops: tuple[int | str, ...] = ()
    max_tokens: int = 0
    template: str | None = None


class LitertlmFile(OpenedFile):
    """A `.litertlm` file that is open for reading; a context manager.

    Parameters
    ----------
    path : str or path

    Attributes
    ----------
    version : tuple of int
    sections : tuple of Section

    Raises
    ------
    BundleError
        It cannot be read, is no such file, is cut short or damaged.
    NotSupported
        It has a version that is not known here.
    """

    def _read_header(self) -> None:
        start = self._file.read(HEADER_AT)
        if start[:8] != MAGIC:
            raise BundleError(
                f"{self.path} is not a LiteRT-LM file: it begins with {start[:8]!r}"
            )
        if len(start) < HEADER_AT:
            raise BundleError(f"{self.path} is cut short within its first 32 bytes")
        self.version: tuple[int, ...] = struct.unpack_from("<III", start, 8)
        if self.version[0] != VERSION[0]:
            version = ".".join(map(str, self.version))
            raise NotSupported(
                f"{self.path} has version {version} of LiteRT-LM's format; eliza reads "
                f"{VERSION[0]}.x"
            )
        (end,) = struct.unpack_from("<Q", start, 24)
        if not HEADER_AT < end <= min(self._size, _MAX_HEADER):
            raise BundleError(
                f"{self.path} is cut short or damaged: its header ends at byte {end}, "
                f"the file at {self._size}"
            )
        try:
            found = self._sections(TableView.root(self._file.read(end - HEADER_AT)))
        except Malformed as error:
            raise BundleError(f"{self.path} has a damaged header: {error}") from None
        for section in found:
            if not end <= section.begin <= section.end <= self._size:
                raise BundleError(
                    f"{self.path} is cut short or damaged: its section {section.name} "
                    f"lies from byte {section.begin} to {section.end}, the file ends "
                    f"at {self._size}"
                )
        self.sections = tuple(found)

    @staticmethod
    def _sections(root: TableView) -> list[Section]:
        found = []
        listed = root.table(1)
        for entry in listed.tables(0) if listed else ():
            model_type = ""
            for item in entry.tables(0):
                value = item.table(2)
                is_text = value is not None and item.number(1, "<B") == _TEXT
                if value is not None and is_text and item.text(0) == "model_type":
                    model_type = value.text(0)
            section = Section(
                kind=entry.number(3, "<B"),
                begin=entry.number(1, "<Q"),
                end=entry.number(2, "<Q"),
                model_type=model_type,
            )
            found.append(section)
        return found

    # What is in it

    def model(self) -> Section:
        """Return the section of the model that takes ids and gives logits.

        Raises
        ------
        NotSupported
            It needs more than this section: an embedder of its own, weights that lie
            elsewhere. The message says what.
        BundleError
            There is none.
        """
        kinds = SectionKind
        models = [s for s in self.sections if s.kind == kinds.TFLITE_MODEL]
        if any(s.kind == kinds.TFLITE_WEIGHTS for s in self.sections):
            raise NotSupported(
                f"{self.path} keeps weights in a section of their own, as bundles of "
                "Gemma do; eliza runs models that are one section, such as "
                "`eliza convert` writes. Use LiteRT-LM itself for this one"
            )
        others = {s.model_type for s in models if "embedder" in s.model_type}
        if others:
            raise NotSupported(
                f"{self.path} has an embedder apart from the model "
                f"({', '.join(sorted(others))}), as bundles of Gemma do; eliza runs "
                "models that take ids. Use LiteRT-LM itself for this one"
            )
        main = [s for s in models if s.model_type in (PREFILL_DECODE, "")]
        if len(main) != 1:
            held = ", ".join(section.name for section in self.sections) or "nothing"
            raise BundleError(
                f"{self.path} has {len(main)} models that generate, not one; it holds "
                f"{shown(held)}"
            )
        return main[0]

    def tokenizer(self) -> bytes:
        """Return the tokenizer's file: a `tokenizer.json`, or SentencePiece's own.

        Raises
        ------
        BundleError
            There is none, or it is damaged.
        """
        for section in self.sections:
            if section.kind == SectionKind.SENTENCEPIECE:
                return self._read(section)
            if section.kind == SectionKind.HUGGING_FACE_ZLIB:
                return self._inflated(section)
        raise BundleError(f"{self.path} has no section with a tokenizer")

    def llm_metadata(self) -> LlmMetadata:
        """Return what the file says about generating; nothing if it says nothing.

        Raises
        ------
        BundleError
            The section is damaged.
        """
        for section in self.sections:
            if section.kind == SectionKind.LLM_METADATA:
                try:
                    return _llm_metadata(self._read(section))
                except ValueError as error:
                    raise BundleError(
                        f"{self.path} has damaged metadata: {error}"
                    ) from None
        return LlmMetadata()

    def extract(self, section: Section) -> Path:
        """Return a file with the content of a section, from the cache.

        The file is found again by its content, and shared by all processes.

        Raises
        ------
        BundleError
            The section cannot be read, or the cache's folder not written to.
        """
        from filelock import FileLock

        sha = hashlib.sha256()
        for piece in self._pieces(section):
            sha.update(piece)
        size = section.end - section.begin
        try:
            folder = cache_folder("litert")
            path = folder / f"{sha.hexdigest()}.tflite"
            if _has_size(path, size):
                mark_used(path)
                return path
            with FileLock(f"{path}.lock"):
                if not _has_size(path, size):
                    if shutil.disk_usage(folder).free < size:
                        raise BundleError(
                            f"{folder} has no room for the {size} bytes of the model "
                            f"in {self.path}; ELIZA_CACHE names another folder"
                        )
                    with atomic_file(path, 0o600) as out:
                        for piece in self._pieces(section):
                            out.write(piece)
                    tidy(folder, path.suffix)
        except OSError as error:
            raise BundleError(
                f"the model in {self.path} cannot be put into the cache: {error}"
            ) from error
        return path

    def _inflated(self, section: Section) -> bytes:
        data = self._read(section)
        if len(data) < 8:
            raise BundleError(f"{self.path} has a tokenizer that is cut short")
        (size,) = struct.unpack_from("<Q", data)
        if size > _MAX_TOKENIZER:
            raise BundleError(f"{self.path} has a tokenizer of {size} bytes")
        inflater = zlib.decompressobj()
        try:
            raw = inflater.decompress(data[8:], size + 1)
        except zlib.error as error:
            raise BundleError(f"{self.path} has a damaged tokenizer: {error}") from None
        if len(raw) != size:
            raise BundleError(
                f"{self.path} has a damaged tokenizer: it is not {size} bytes long"
            )
        return raw

    def _read(self, section: Section) -> bytes:
        """Return a section that is not a model, and not too large for memory."""
        if section.end - section.begin > _MAX_TOKENIZER:
            raise BundleError(
                f"{self.path} has a section {section.name} of "
                f"{section.end - section.begin} bytes"
            )
        return b"".join(self._pieces(section))

    def _pieces(self, section: Section) -> Iterator[bytes]:
        """Give the content of a section, some megabytes at a time."""
        if self._file.closed:
            raise Closed(f"{self.path} is closed; open it again")
        at = section.begin
        while at < section.end:
            size = min(_PIECE, section.end - at)
            try:
                self._file.seek(at)
                data = self._file.read(size)
            except OSError as error:
                raise BundleError(f"{self.path} cannot be read: {error}") from error
            if len(data) < size:
                raise BundleError(f"{self.path} was cut short while it was read")
            at += size
            yield data


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _llm_metadata(data: bytes) -> LlmMetadata:
    starts: list[int | str] = []
    stops: list[int | str] = []
    max_tokens, template = 0, None
    for field, value in protobuf.fields(data):
        if field in (1, 2) and isinstance(value, bytes):
            (starts if field == 1 else stops).extend(_token(value))
        elif field == 5 and isinstance(value, int):
            max_tokens = value if value < 1 << 31 else 0
        elif field == 7 and isinstance(value, bytes):
            template = value.decode()
    return LlmMetadata(tuple(starts), tuple(stops), max_tokens, template)


def _token(data: bytes) -> list[int | str]:
    """Return the one id of a message, or its text; nothing for a sequence of ids."""
    for field, value in protobuf.fields(data):
        if field == 2 and isinstance(value, bytes):
            return [value.decode()]
        if field == 1 and isinstance(value, bytes):
            ids: list[int | str] = []
            for inner, packed in protobuf.fields(value):
                if inner == 1:
                    ids.extend(protobuf.integers(packed))
            return ids if len(ids) == 1 else []
    return []
