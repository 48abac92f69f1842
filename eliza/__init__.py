"""Make a local language model answer with exactly one of the things you allow.

>>> model = eliza.load("model.gguf")                                # doctest: +SKIP
>>> model.choose("The sky is", [" blue", " green"]).value           # doctest: +SKIP
' blue'
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

try:
    from eliza._batch import argmax_batch, bitmask_batch, mask_batch
except ModuleNotFoundError as _error:
    if _error.name != "eliza._batch":
        raise
    raise ImportError(
        "eliza's compiled core is missing: this is the source folder, not an installed "
        "package. Run `pip install .` in it and start Python somewhere else."
    ) from None
from eliza._cursor import Cursor, State
from eliza._subset import Subset
from eliza._trie import Trie
from eliza.cache import CacheStats, TrieCache
from eliza.chat import ChatTemplate
from eliza.choosing.answer import Answer, Ranked, Ranking, Stats
from eliza.describing import describe_choices
from eliza.errors import (
    AbiMismatch,
    BackendError,
    BundleError,
    Cancelled,
    Closed,
    ContextOverflow,
    ElizaError,
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    NotSupported,
    OffPathError,
    OutOfMemory,
    TokenLimit,
)
from eliza.loading import load
from eliza.model import Model
from eliza.session import Session
from eliza.step import Counters, Step
from eliza.vocab import Vocab

if _TYPE_CHECKING:
    from eliza._capi import c_api, get_include
    from eliza._dispatch import DEFAULT, ERROR, USE, Registry, Selection
    from eliza.abi import abi_library
    from eliza.backends import select
    from eliza.files.bundle import Bundle
    from eliza.payload import TokenTreeDescriptor, TokenTreeLeaf, TokenTreePayload

__all__ = [
    "DEFAULT",
    "ERROR",
    "USE",
    "AbiMismatch",
    "Answer",
    "BackendError",
    "Bundle",
    "BundleError",
    "CacheStats",
    "Cancelled",
    "ChatTemplate",
    "Closed",
    "ContextOverflow",
    "Counters",
    "Cursor",
    "ElizaError",
    "InvalidArgument",
    "InvalidType",
    "Model",
    "NoCandidateError",
    "NotSupported",
    "OffPathError",
    "OutOfMemory",
    "Ranked",
    "Ranking",
    "Registry",
    "Selection",
    "Session",
    "State",
    "Stats",
    "Step",
    "Subset",
    "TokenLimit",
    "TokenTreeDescriptor",
    "TokenTreeLeaf",
    "TokenTreePayload",
    "Trie",
    "TrieCache",
    "Vocab",
    "abi_library",
    "argmax_batch",
    "bitmask_batch",
    "c_api",
    "describe_choices",
    "get_include",
    "load",
    "mask_batch",
    "select",
]

#: What is imported when it is asked for, and from where.
_LATER = {
    "Bundle": "eliza.files.bundle",
    "DEFAULT": "eliza._dispatch",
    "ERROR": "eliza._dispatch",
    "Registry": "eliza._dispatch",
    "Selection": "eliza._dispatch",
    "TokenTreeDescriptor": "eliza.payload",  # by itself a third of the import's time
    "TokenTreeLeaf": "eliza.payload",
    "TokenTreePayload": "eliza.payload",
    "USE": "eliza._dispatch",
    "abi_library": "eliza.abi",
    "c_api": "eliza._capi",
    "get_include": "eliza._capi",
    "select": "eliza.backends",
}

if "logging" in _sys.modules:  # else `logs` does so before the first message: 3 ms
    from eliza.logs import get_logger as _get_logger

    _get_logger("eliza")


def __getattr__(name: str) -> _Any:
    # Reading the version takes as long as importing all the rest: when asked only.
    if name == "__version__":
        from importlib.metadata import version

        return version("eliza")
    if name in _LATER:
        return getattr(_import_module(_LATER[name]), name)
    raise AttributeError(f"module 'eliza' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
