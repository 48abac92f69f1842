"""What MLX holds of a sequence, as bytes, and what names a model.

A cache is a list of layers, and each gives its state as a tree of arrays and plain
values. The arrays go into a file of the format `safetensors`, the tree beside them as
JSON. Reading runs no code. It is done here and not by MLX, which reads a file of Python
in threads of its own, and aborts the process if it ends before they let go of the file.
"""

from __future__ import annotations

import hashlib
import io
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from eliza.errors import BackendError, NotSupported
from eliza.files.fingerprint import fingerprint_file

__all__ = ["load_state", "model_fingerprint", "save_state"]

_TREE = "eliza"

#: Number types of `safetensors` in NumPy's words; bfloat16 as its bits.
_DTYPES = {
    "BOOL": "?",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "C64": "<c8",
}


def save_state(mx: Any, cache: list[Any]) -> bytes:
    """Return the state of a cache.

    Raises
    ------
    NotSupported
        It holds something that is neither an array nor a plain value.
    """
    arrays: dict[str, Any] = {}

    def written(value: Any) -> Any:
        if isinstance(value, mx.array):
            arrays[name := str(len(arrays))] = mx.contiguous(value)
            return {"array": name}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [written(part) for part in value]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        raise NotSupported(
            f"the cache holds a {type(value).__name__}, which cannot be saved"
        )

    tree = json.dumps([written(layer.state) for layer in cache])
    file = io.BytesIO()
    mx.save_safetensors(file, arrays or {"none": mx.zeros((1,))}, {_TREE: tree})
    return file.getvalue()


def load_state(mx: Any, cache: list[Any], state: bytes) -> None:
    """Put a state into an empty cache of the same model.

    Raises
    ------
    BackendError
        It is not a state of such a cache.
    """
    try:
        arrays, kept = _read_arrays(mx, state)
        layers = json.loads(kept[_TREE])
        if len(layers) != len(cache):
            raise ValueError(f"{len(layers)} layers, and the model has {len(cache)}")

        def read(value: dict[str, Any]) -> Any:
            ((kind, content),) = value.items()
            if kind == "array":
                return arrays[content]
            if kind == "value":
                return content
            parts = [read(part) for part in content]
            return parts if kind == "list" else tuple(parts)

        for layer, tree in zip(cache, layers, strict=True):
            layer.state = read(tree)
    except (ValueError, TypeError, LookupError, RuntimeError, AttributeError) as error:
        raise BackendError(
            f"MLX refused a state of {len(state)} bytes: {error}"
        ) from error


def _read_arrays(mx: Any, state: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays of a file of the format `safetensors`, and what is beside them.

    Whatever does not fit raises one of the errors that `load_state` converts.
    """
    size = int.from_bytes(state[:8], "little")
    header = json.loads(state[8 : 8 + size])
    kept: dict[str, str] = header.pop("__metadata__")
    data = memoryview(state)[8 + size :]
    arrays: dict[str, Any] = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        kind, part = entry["dtype"], data[start:stop]
        values = np.frombuffer(part, _DTYPES[kind]).reshape(entry["shape"])
        array = mx.array(values)
        arrays[name] = array.view(mx.bfloat16) if kind == "BF16" else array
    return arrays, kept


def model_fingerprint(folder: Path) -> bytes:
    """Return SHA-256 of what a saved state depends on: the weights and mlx-lm.

    Raises
    ------
    NotSupported
        The files are not there any more.
    """
    sha = hashlib.sha256()
    options = f"mlx {metadata.version('mlx-lm')} "
    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        sha.update(fingerprint_file(path, options))
    return sha.digest()
