"""What tells one model file from another without reading all of it."""

from __future__ import annotations

import hashlib
import os

from eliza.errors import NotSupported

__all__ = ["fingerprint_file"]

_SAMPLES = 64
_SAMPLE_BYTES = 1 << 14
_HEAD_BYTES = 1 << 20


def fingerprint_file(path: str | os.PathLike[str], prefix: str) -> bytes:
    """Return SHA-256 of a text and of samples of a file.

    Those are its size, its first MiB, and 64 pieces of 16 KiB spread over the rest; a
    whole file of some GB would take seconds.

    Parameters
    ----------
    prefix : str
        What else a saved state depends on, such as the options of the cache.

    Raises
    ------
    NotSupported
        The file is not there any more.
    """
    sha = hashlib.sha256(prefix.encode())
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            sha.update(f"{size} ".encode())
            sha.update(file.read(_HEAD_BYTES))
            for i in range(_SAMPLES):
                file.seek(size * i // _SAMPLES)
                sha.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise NotSupported(
            f"the model's file cannot be read, so that saved state cannot be tied to "
            f"it: {error}"
        ) from error
    return sha.digest()
