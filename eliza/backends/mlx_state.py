"""What MLX holds of a sequence, as bytes, and what names a model.

A cache is a list of layers, and each gives its state as a tree of arrays and plain
values. The arrays go into a file of the format `safetensors`, the tree beside them as
JSON. Reading runs no code.
"""

from __future__ import annotations

import hashlib
import io
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from eliza.errors import BackendError, NotSupported
from eliza.files.fingerprint import fingerprint_file

__all__ = ["load_state", "model_fingerprint", "save_state"]

_TREE = "eliza"


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
        arrays, kept = mx.load(
            io.BytesIO(state), format="safetensors", return_metadata=True
        )
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

        mx.eval(list(arrays.values()))
        for layer, tree in zip(cache, layers, strict=True):
            layer.state = read(tree)
    except (ValueError, TypeError, LookupError, RuntimeError, AttributeError) as error:
        raise BackendError(
            f"MLX refused a state of {len(state)} bytes: {error}"
        ) from error


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
