"""Weights in the order in which the processor reads them, kept on disk.

XNNPACK reorders weights when a model is loaded, for each signature anew. With a file to
keep them in it does so once: SmolLM2 in int8 then loads in 0.08 s in place of 0.86, and
takes 80 MB in place of 670, because its signatures share what is mapped from the file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from eliza._atomic import sync_folder
from eliza.files.caching import cache_folder, mark_used, tidy
from eliza.files.fingerprint import fingerprint_file

__all__ = ["packed_weights"]

#: Smaller models are packed in no time.
_SMALLEST = 32 << 20

logger = logging.getLogger("eliza.litert")


@contextmanager
def packed_weights(path: str) -> Iterator[str | None]:
    """Give the name of a file for the packed weights of a model, while it is loaded.

    If there is none yet, one process writes it and others wait; it is there as a whole
    when the block ends without an error, and the oldest of many are deleted. None is
    given if a file is not worth it, or the cache's folder cannot be used.
    """
    final = _place(path)
    if final is None:
        yield None
        return
    if final.exists():
        mark_used(final)
        yield str(final)
        return
    from filelock import FileLock

    with FileLock(f"{final}.lock"):
        if final.exists():
            yield str(final)
            return
        temporary = final.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            yield str(temporary)
            if temporary.exists():  # the runtime may have nothing to pack
                with open(temporary, "rb+") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, final)
                sync_folder(os.fspath(final.parent))
                tidy(final.parent, final.suffix)
        finally:
            temporary.unlink(missing_ok=True)


def _place(path: str) -> Path | None:
    try:
        status = os.stat(path)
        if status.st_size < _SMALLEST:
            return None
        folder = cache_folder("litert")
        if shutil.disk_usage(folder).free < 2 * status.st_size:
            logger.info("%s has no room for packed weights", folder)
            return None
    except OSError as error:
        logger.info("no packed weights are kept: %s", error)
        return None
    # The order depends on the library and on the processor. The library compares
    # nothing of the model, so the name has to tell one from another.
    made_by = f"{_library()} {status.st_mtime_ns} {_processor()} "
    return folder / f"{fingerprint_file(path, made_by).hex()}.xnnpack"


def _library() -> str:
    """Return what tells versions of the library apart, whoever has packaged it."""
    try:
        return version("ai-edge-litert")
    except PackageNotFoundError:
        found = find_spec("ai_edge_litert")
        origin = found.origin if found is not None else None
        return f"{os.stat(origin).st_mtime_ns if origin else 0}"


def _processor() -> str:
    """Return what tells kinds of processors apart."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    known = ("model name", "flags", "Features", "CPU part")
    found = sorted({line for line in lines if line.startswith(known)} or {*lines})
    return hashlib.sha256("\n".join(found).encode()).hexdigest()
