"""What llama.cpp holds of a sequence, as bytes, and what names a model."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from eliza.errors import BackendError
from eliza.files.fingerprint import fingerprint_file

if TYPE_CHECKING:
    from eliza.backends.llama_load import Options

__all__ = ["load_state", "model_fingerprint", "save_state"]


def save_state(lib: Any, context: Any, id_: int) -> bytes:
    """Return the cells of a sequence: keys, values and positions.

    Parameters
    ----------
    context : int
        The `llama_context`.
    id_ : int
        The sequence.
    """
    size = lib.llama_state_seq_get_size(context, id_)
    data = bytearray(size)
    buffer = (ctypes.c_uint8 * size).from_buffer(data)
    written = lib.llama_state_seq_get_data(context, buffer, size, id_)
    if written != size:
        raise BackendError(
            f"llama.cpp wrote {written} of {size} bytes of the sequence's state"
        )
    return bytes(data)


def load_state(lib: Any, context: Any, id_: int, state: bytes) -> bool:
    """Put cells into a sequence that has none; return whether it could be done."""
    size = len(state)
    buffer = (ctypes.c_uint8 * size).from_buffer_copy(state)
    read: int = lib.llama_state_seq_set_data(context, buffer, size, id_)
    return read == size


def model_fingerprint(path: str, options: Options) -> bytes:
    """Return SHA-256 of what a saved state depends on.

    That is the number type of the cache, flash attention (which changes how values lie
    in it), and samples of the file, its metadata among them.

    Raises
    ------
    NotSupported
        The file is not there any more.
    """
    return fingerprint_file(path, f"{options.kv_type} {options.flash_attn} ")
