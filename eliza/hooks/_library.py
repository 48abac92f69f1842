"""The installed llama.cpp, checked against what eliza was compiled for."""

from __future__ import annotations

import ctypes
from typing import Any

from eliza import _llama_api
from eliza.backends.llama_context import function_address
from eliza.backends.llama_load import import_llama
from eliza.errors import AbiMismatch

__all__ = ["check_layout", "library"]

#: Fewer callbacks than these a sampler never had; later versions added more behind.
_FIRST = 6

_bound: Any = None


def library() -> Any:
    """Return `llama_cpp.llama_cpp`, ready for links.

    Raises
    ------
    NotSupported
        llama-cpp-python is not installed.
    AbiMismatch
        Its structs are not those that eliza knows.
    """
    global _bound
    if _bound is None:
        lib = import_llama()
        check_layout(lib)
        _llama_api.bind_library(
            [function_address(lib, name) for name in _llama_api.CALLS]
        )
        _bound = lib
    return _bound


def check_layout(lib: Any) -> None:
    """Compare the structs of a llama_cpp module with those that eliza knows.

    Raises
    ------
    AbiMismatch
        A struct differs; the message says in what.
    """
    for name, (size, fields) in _llama_api.layout().items():
        theirs = _fields(lib, name)
        least = _FIRST if name == "llama_sampler_i" else len(fields)
        # A library that knows fewer callbacks never looks at the others.
        for at in range(max(least, len(theirs))):
            known = fields[at] if at < len(fields) else None
            seen = theirs[at] if at < len(theirs) else None
            if known != seen:
                raise AbiMismatch(
                    f"{name} of this llama-cpp-python is not the one that eliza knows: "
                    f"field {at} is {_shown(seen)}, not {_shown(known)}; eliza.hooks."
                    "llama cannot make samplers for it, Cursor and the other hooks work"
                )
        their_size = ctypes.sizeof(getattr(lib, name))
        if least == len(fields) and their_size != size:
            raise AbiMismatch(
                f"{name} of this llama-cpp-python takes {their_size} bytes, not {size}"
            )


def _fields(lib: Any, name: str) -> list[tuple[str, int, int]]:
    struct = getattr(lib, name, None)
    if struct is None or not hasattr(struct, "_fields_"):
        raise AbiMismatch(f"this llama-cpp-python has no struct {name}")
    found = []
    for field in struct._fields_:
        place = getattr(struct, field[0])
        found.append((field[0], place.offset, place.size))
    return found


def _shown(field: tuple[str, int, int] | None) -> str:
    if field is None:
        return "nothing"
    return f"{field[0]} (offset {field[1]}, {field[2]} bytes)"
