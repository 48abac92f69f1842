"""Functions of eliza.h and eliza_inference.h for ctypes, with types read from there."""

from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path
from typing import Any

import eliza

__all__ = ["Api", "Library", "StreamConfig", "functions", "header", "ids", "signature"]

_TYPES = {
    "void": None,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
    "void *": ctypes.c_void_p,
    "char *": ctypes.c_void_p,  # an output buffer; an input text is const
    "const char *": ctypes.c_char_p,
    "const char *const *": ctypes.POINTER(ctypes.c_char_p),
    "int32_t *": ctypes.POINTER(ctypes.c_int32),
    "int64_t *": ctypes.POINTER(ctypes.c_int64),
    "uint32_t *": ctypes.POINTER(ctypes.c_uint32),
    "size_t *": ctypes.POINTER(ctypes.c_size_t),
    "float *": ctypes.POINTER(ctypes.c_float),
    "double *": ctypes.POINTER(ctypes.c_double),
}


def header(name: str) -> str:
    """Return the text of a header without its comments."""
    text = (Path(eliza.get_include()) / name).read_text()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def _type(text: str) -> Any:
    text = re.sub(r"\s+", " ", text).strip()
    if text not in _TYPES and text.startswith("const "):
        text = text.removeprefix("const ")
    if text in _TYPES:
        return _TYPES[text]
    return ctypes.POINTER(ctypes.c_void_p) if text.endswith("**") else ctypes.c_void_p


def signature(result: str, parameters: str) -> Any:
    """Return the ctypes function type of a declaration."""
    types = []
    for parameter in parameters.split(","):
        found = re.fullmatch(r"\s*(.*?)(\w+)\s*", parameter, re.DOTALL)
        assert found, parameter
        kind = found[1] if found[1].strip() else found[2]
        if kind.strip() != "void":
            types.append(_type(kind))
    return ctypes.CFUNCTYPE(_type(result), *types)


def functions(text: str) -> list[tuple[str, Any]]:
    """Return the members of `eliza_api` in their order."""
    body = re.search(r"typedef struct eliza_api \{(.*?)\} eliza_api;", text, re.DOTALL)
    assert body
    found = re.findall(r"(\w+) \(\*(\w+)\)\((.*?)\);", body[1], re.DOTALL)
    return [(name, signature(result, given)) for result, name, given in found]


class _Head(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("version", ctypes.c_uint32)]


class Api:
    """The API at an address. A call gives the status; `text` is the error's text."""

    def __init__(self, address: int) -> None:
        fields = functions(header("eliza.h"))
        layout = type("Layout", (_Head,), {"_fields_": fields})
        self.struct = layout.from_address(address)
        self.names = [name for name, _ in fields]
        self.sizeof = ctypes.sizeof(layout)
        self._err = ctypes.create_string_buffer(500)

    @property
    def text(self) -> str:
        return self._err.value.decode()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.struct, name)
        if name in ("trie_free", "cursor_free"):
            return function
        err = ctypes.cast(self._err, ctypes.c_void_p)

        def call(*arguments: Any) -> int:
            self._err.value = b"untouched"
            status: int = function(*arguments, err, len(self._err))
            return status

        return call

    # What most tests need

    def trie(self, leaves: dict[str, Any], n_vocab: int, exits: Any = ()) -> Any:
        tokens = [token for sequence in leaves.values() for token in sequence]
        offsets = [0]
        for sequence in leaves.values():
            offsets.append(offsets[-1] + len(sequence))
        names = (ctypes.c_char_p * len(leaves))(*(name.encode() for name in leaves))
        out = ctypes.c_void_p()
        status = self.trie_from_arrays(
            ids(tokens), (ctypes.c_int64 * len(offsets))(*offsets), len(leaves), names,
            n_vocab, ids(exits), len(exits), ctypes.byref(out),
        )  # fmt: skip
        assert status == 0, self.text
        return out

    def cursor(self, trie: Any, exits: Any = (), allow: Any = None) -> Any:
        out = ctypes.c_void_p()
        allowed = None if allow is None else (ctypes.c_int64 * len(allow))(*allow)
        status = self.cursor_new(
            trie, ids(exits), len(exits), allowed, len(allow or ()), ctypes.byref(out)
        )
        assert status == 0, self.text
        return out

    def read(self, name: str, *arguments: Any, cap: int = 4096) -> list[int]:
        """Return the ids that a function writes."""
        buffer, n = (ctypes.c_int32 * cap)(), ctypes.c_size_t()
        status = getattr(self, name)(*arguments, buffer, cap, ctypes.byref(n))
        assert status == 0, self.text
        return buffer[: n.value]


def ids(values: Any) -> Any:
    """Return ids as a C array; NULL for none."""
    values = list(values)
    return (ctypes.c_int32 * len(values))(*values) if values else None


class Library:
    """The symbols of eliza_inference.h. A call gives the status; `text` is the error's.

    Functions are called without their common prefix.
    """

    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        text = header("eliza_inference.h")
        found = re.findall(
            r"^(int|void|const char \*|const eliza_api \*)\s?(eliza_\w+)\((.*?)\);",
            text,
            re.DOTALL | re.MULTILINE,
        )
        self.names = [name for _, name, _ in found]
        self.types = {}
        for result, name, given in found:
            kind = signature(result, given)
            function = getattr(self.lib, name)
            function.restype, function.argtypes = kind._restype_, kind._argtypes_
            self.types[name] = kind._argtypes_
        # One for each thread: errors of one are not those of another.
        self._own = threading.local()

    @property
    def err(self) -> Any:
        if not hasattr(self._own, "err"):
            self._own.err = ctypes.create_string_buffer(2000)
        return self._own.err

    @property
    def text(self) -> str:
        return self.err.value.decode()

    def __getattr__(self, short: str) -> Any:
        for name in self.names:
            if name.endswith(f"_{short}"):
                break
        else:
            raise AttributeError(short)
        function = getattr(self.lib, name)
        if short in ("destroy", "close", "cancel"):
            return function

        def call(*arguments: Any) -> int:
            self.err.value = b"untouched"
            err = ctypes.cast(self.err, ctypes.c_void_p)
            status: int = function(*arguments, err, len(self.err))
            return status

        return call


class StreamConfig(ctypes.Structure):
    """`eliza_llm_stream_config_t`."""

    _fields_ = [
        ("max_tokens", ctypes.c_int32),
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("repeat_penalty", ctypes.c_float),
        ("slot_id", ctypes.c_int32),
        ("prompt_cache_key", ctypes.c_char_p),
        ("draft_min", ctypes.c_int32),
        ("draft_max", ctypes.c_int32),
        ("mtp_drafter_path", ctypes.c_char_p),
        ("gbnf_grammar", ctypes.c_char_p),
        ("disable_thinking", ctypes.c_int32),
        ("n_gpu_layers", ctypes.c_int32),
        ("cache_type_k", ctypes.c_char_p),
        ("cache_type_v", ctypes.c_char_p),
        ("context_size", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("min_p", ctypes.c_float),
    ]
