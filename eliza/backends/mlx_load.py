"""Loading: from a folder of MLX weights to a model of mlx-lm.

The classes of models are taken from mlx-lm without importing mlx-lm itself, which
imports transformers (4 to 5 s) and changes limits of the process. Its models are a
package of their own, and import each other by relative names; here they are loaded
under another name. What a folder asks for beyond that, mlx-lm itself loads.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from eliza.errors import (
    BackendError,
    BundleError,
    ElizaError,
    NotSupported,
    OutOfMemory,
)

__all__ = ["import_mlx", "load_model", "loading", "model_module", "read_json"]

#: The name under which mlx-lm's models are loaded.
_ALIAS = "_eliza_mlx_lm"
#: Kinds of models that are computed as others are.
_SAME_AS = {"mistral": "llama", "iquestcoder": "llama", "xverse": "llama"}

INSTALL = "pip install 'eliza[mlx]'"

#: The process that computes with MLX.
_pid: int | None = None


def import_mlx() -> Any:
    """Return the module `mlx.core`.

    Raises
    ------
    NotSupported
        It is not installed, or only a part of it.
    BackendError
        This is a fork of a process that used it. The threads by which MLX reads files
        and computes are not in the child: the first call would hang.
    """
    global _pid
    try:
        import mlx.core as mx
    except ImportError as error:
        has_library = importlib.util.find_spec("mlx") is not None
        part = (
            "; the package mlx-cpu is there, but only mlx has mlx.core: "
            'pip install "mlx[cpu]"'
        )
        raise NotSupported(
            f"the MLX backend needs mlx and mlx-lm ({error}): {INSTALL}"
            + (part if has_library else "")
        ) from error
    if _pid is None:
        _pid = os.getpid()
    elif _pid != os.getpid():
        raise BackendError(
            "MLX was used in another process, of which this one is a fork, and does "
            'not work here: start the process anew (multiprocessing: "spawn")'
        )
    return mx


def model_module(name: str) -> ModuleType:
    """Return a module of mlx-lm's folder `models`, such as "llama" or "cache".

    Raises
    ------
    NotSupported
        mlx-lm is not installed, or has no such model.
    """
    if _ALIAS not in sys.modules:
        spec = importlib.util.find_spec("mlx_lm")
        if spec is None or not spec.submodule_search_locations:
            raise NotSupported(f"the MLX backend needs mlx-lm: {INSTALL}")
        package = ModuleType(_ALIAS)
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules.setdefault(_ALIAS, package)
    if not name.isidentifier():
        raise NotSupported(f"mlx-lm has no model {name!r}")
    try:
        return importlib.import_module(f"{_ALIAS}.models.{name}")
    except ImportError as error:
        raise NotSupported(f"mlx-lm has no model {name!r}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return an object of a file in JSON.

    Raises
    ------
    BundleError
        There is none.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BundleError(f"{path} is not an object of JSON")
    return found


def load_model(
    mx: Any, folder: Path, progress: Callable[[float], object] | None
) -> tuple[Any, dict[str, Any]]:
    """Load a model with its weights.

    Parameters
    ----------
    progress : callable or None
        Called with the fraction of the weights that is in memory, in [0, 1].

    Returns
    -------
    model : mlx.nn.Module
        Called with ids of shape [1, n] and a cache, it gives logits.
    config : dict
        The folder's `config.json`.

    Raises
    ------
    BundleError
        Something is missing in the folder, damaged, or does not fit together.
    NotSupported
        mlx-lm has no such model, or the folder wants code of its own to be run.
    """
    config = read_json(folder / "config.json")
    if config.get("model_file") is not None:
        raise NotSupported(
            f"{folder} wants its own code to be run ({config['model_file']!r}); eliza "
            "runs no code of a model"
        )
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise BundleError(f"{folder}/config.json has no model_type")
    with loading(folder):
        if "quantization_config" in config and "quantization" not in config:
            model = _by_mlx_lm(folder)
        else:
            module = model_module(_SAME_AS.get(kind, kind))
            model = _make(module, config, _weights(mx, folder))
    for fraction in _evaluated(mx, model, folder):
        if progress is not None:
            progress(fraction)
    return model, config


@contextmanager
def loading(what: object) -> Iterator[None]:
    """Convert whatever the code of mlx-lm raises at files that do not fit together."""
    try:
        yield
    except ElizaError:
        raise
    except MemoryError as error:
        raise OutOfMemory(f"{what}: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise BundleError(f"{what} cannot be loaded: {reason}") from error


def _weights(mx: Any, folder: Path) -> dict[str, Any]:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise BundleError(f"{folder} has no model*.safetensors")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = read_json(index).get("weight_map")
        names = set(listed.values()) if isinstance(listed, dict) else set()
        missing = sorted(names - {file.name for file in files})
        if missing:
            raise BundleError(f"{folder} lacks {missing[0]}, which its index lists")
    weights: dict[str, Any] = {}
    for file in files:
        weights.update(mx.load(str(file)))
    return weights


def _make(module: ModuleType, config: dict[str, Any], weights: dict[str, Any]) -> Any:
    nn: Any = importlib.import_module("mlx.nn")
    model = module.Model(module.ModelArgs.from_dict(config))
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    quantization = config.get("quantization")
    if quantization is not None:

        def how(path: str, layer: Any) -> Any:
            """Return how a layer is quantised, or False."""
            if path in quantization:
                return quantization[path]
            if not hasattr(layer, "to_quantized") or f"{path}.scales" not in weights:
                return False
            width = layer.weight.shape[-1]
            packed = weights[f"{path}.weight"].shape[-1]
            group_size = width // weights[f"{path}.scales"].shape[-1]
            bits = 32 * packed // width
            return {"group_size": group_size, "bits": bits, "mode": mode}

        mode = quantization.get("mode", "affine")
        nn.quantize(
            model,
            group_size=quantization["group_size"],
            bits=quantization["bits"],
            mode=mode,
            class_predicate=how,
        )
    model.eval()
    model.load_weights(list(weights.items()), strict=True)
    return model


def _by_mlx_lm(folder: Path) -> Any:
    """Load a model with the whole of mlx-lm, which knows more quantisations."""
    try:
        from mlx_lm.utils import load_model as load
    except ImportError as error:
        raise NotSupported(f"this model needs mlx-lm ({error}): {INSTALL}") from error
    return load(folder, lazy=True)[0]


def _evaluated(mx: Any, model: Any, folder: Path) -> Iterator[float]:
    """Read the weights, of which only the names and shapes have been read so far."""
    utils: Any = importlib.import_module("mlx.utils")
    arrays = [array for _, array in utils.tree_flatten(model.parameters())]
    total = sum(array.nbytes for array in arrays) or 1
    done = 0
    for array in arrays:
        with loading(folder):
            mx.eval(array)
        done += array.nbytes
        yield done / total


def converted(error: BaseException) -> BaseException:
    """Return what eliza raises in place of an error of MLX."""
    if isinstance(error, MemoryError):
        return OutOfMemory(str(error))
    return BackendError(f"MLX failed: {error}")
