"""Writing a Llama as a folder that mlx-lm reads.

`config.json`, `model.safetensors`, `tokenizer.json` and what the model says of its
texts. The weights go to the file one tensor after the other: at no time is more than
one of them in memory.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from eliza._atomic import sync_folder
from eliza.errors import BundleError, InvalidArgument, NotSupported
from eliza.tokenizers.gguf import GgufTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from eliza.convert.source import LlamaConfig

__all__ = ["TYPES", "Source", "write_mlx"]

#: Number types that can be written.
TYPES = ("f32", "f16", "int8")

#: The most values that are turned into another type at one time.
_SLICE = 1 << 22


class Source(Protocol):
    """What is read of a model: `eliza.convert.source.GgufSource`."""

    config: LlamaConfig
    shapes: Mapping[str, tuple[int, ...]]
    raw_tokenizer: Mapping[str, Any]

    def tensor(
        self, name: str, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float32]:
        """Return the values of a tensor, or of some of its rows."""


def write_mlx(
    source: Source,
    out: str | os.PathLike[str],
    type: str = "f32",
    progress: Callable[[float], object] | None = None,
) -> None:
    """Write a model as a folder for the MLX backend, and for mlx-lm.

    Parameters
    ----------
    source : GgufSource
        The model.
    out : path
        The folder; there must be nothing, or an empty folder, which stays as it is if
        the work fails.
    type : {"f32", "f16", "int8"}
        Of the weights. "int8" is MLX's own quantisation, 8 bits with a scale and a
        bias for each 64 or 32 values of a row; its scales are float32, so that the
        logits are.
    progress : callable, optional
        Called with the fraction that is written, in [0, 1]. What it raises stops the
        work; nothing is left behind.

    Raises
    ------
    InvalidArgument
        The type is none of these.
    BundleError
        There is something at `out`, or it cannot be written.
    NotSupported
        The tokenizer cannot be written as a `tokenizer.json`, or the rows of a tensor
        cannot be divided into groups.
    """
    if type not in TYPES:
        raise InvalidArgument(f"type is {type!r}; it is one of {', '.join(TYPES)}")
    tokenizer = GgufTokenizer(source.raw_tokenizer)
    tensors = _tensors(source, type)
    texts = {
        "config.json": _dumped(_config(source.config, tokenizer, type, tensors)),
        "tokenizer.json": tokenizer.to_json(),
        "tokenizer_config.json": _dumped(_tokenizer_config(source.config, tokenizer)),
        "generation_config.json": _dumped(
            {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.ends or None}
        ),
    }
    out = Path(out)
    if os.path.lexists(out) and not _is_empty(out):
        raise BundleError(f"{out} is there already; give the name of a new folder")
    partial = out.with_name(f".{out.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        partial.mkdir()
        for name, data in texts.items():
            with _synced(partial / name) as file:
                file.write(data)
        with _synced(partial / "model.safetensors") as file:
            _write_tensors(file, source, tensors, progress)
        sync_folder(str(partial))
        partial.rename(out)  # in place of an empty folder that may be there
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise BundleError(f"{out} cannot be written: {error.strerror}") from error
        raise
    sync_folder(str(out.parent))


def _is_empty(path: Path) -> bool:
    """Whether there is an empty folder, which can be replaced."""
    try:
        return bool(path.name) and not path.is_symlink() and not any(path.iterdir())
    except OSError:
        return False


class _synced:  # noqa: N801
    """A new file that is on the disk when its block ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> IO[bytes]:
        self._file = open(self._path, "xb")
        return self._file

    def __exit__(self, *exc: object) -> None:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())


def _dumped(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


# What the model is


def _config(
    config: LlamaConfig, tokenizer: GgufTokenizer, type: str, tensors: list[_Tensor]
) -> dict[str, Any]:
    written: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "_name_or_path": config.name,
        "vocab_size": config.n_vocab,
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layers,
        "intermediate_size": config.n_ff,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_traditional": False,
        "max_position_embeddings": config.n_ctx_train,
        "tie_word_embeddings": config.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float16" if type == "f16" else "float32",
        "bos_token_id": tokenizer.bos,
        "eos_token_id": tokenizer.ends or None,
    }
    groups = {tensor.group for tensor in tensors if tensor.group}
    if groups:
        written["quantization"] = {"group_size": min(groups), "bits": 8}
    return written


def _tokenizer_config(config: LlamaConfig, tokenizer: GgufTokenizer) -> dict[str, Any]:
    def text(token: int | None) -> str | None:
        return None if token is None else tokenizer.texts[token]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text(tokenizer.bos),
        "eos_token": text(tokenizer.eos),
        "add_bos_token": tokenizer.adds_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.n_ctx_train,
        "chat_template": tokenizer.chat_template,
    }


# The weights


class _Tensor:
    """One tensor of the source, and the tensors of the file that it becomes."""

    def __init__(
        self, name: str, shape: tuple[int, ...], kind: str, group: int
    ) -> None:
        self.name = name
        self.shape = shape
        self.group = group if kind == "int8" and len(shape) == 2 else 0
        self.parts: dict[str, tuple[str, tuple[int, ...]]]
        if self.group:
            rows, columns = shape
            scales = (rows, columns // group)
            stem = name.removesuffix("weight")
            self.parts = {
                name: ("U32", (rows, columns // 4)),
                stem + "scales": ("F32", scales),
                stem + "biases": ("F32", scales),
            }
        else:
            half = kind == "f16"
            self.parts = {name: ("F16" if half else "F32", shape)}

    def arrays(self, values: NDArray[np.float32]) -> list[NDArray[Any]]:
        """Return the parts for some of the rows."""
        if self.group:
            return quantised(values, self.group)
        if next(iter(self.parts.values()))[0] == "F32":
            return [values.astype("<f4", copy=False)]
        if values.size and float(np.abs(values).max()) > float(
            np.finfo(np.float16).max
        ):
            raise NotSupported(f"{self.name} has values beyond what f16 can hold")
        return [values.astype("<f2")]


def _tensors(source: Source, kind: str) -> list[_Tensor]:
    group = 0
    if kind == "int8":
        widths = {shape[1] for shape in source.shapes.values() if len(shape) == 2}
        fitting = [size for size in (64, 32) if not any(w % size for w in widths)]
        if not fitting:
            raise NotSupported(
                f"int8 needs rows of a multiple of 32 values; this model has {widths}"
            )
        group = fitting[0]
    shapes = source.shapes.items()
    return [_Tensor(name, shape, kind, group) for name, shape in shapes]


def quantised(values: NDArray[np.float32], group: int) -> list[NDArray[Any]]:
    """Return rows in MLX's 8 bits: packed values, scales and biases.

    A value is scale * q + bias, with q in [0, 255], four of them in a word.
    """
    grouped = values.reshape(len(values), -1, group)
    low, high = grouped.min(axis=2), grouped.max(axis=2)
    scales = np.maximum((high - low) / 255, np.finfo(np.float32).tiny)
    steps = np.rint((grouped - low[..., None]) / scales[..., None])
    packed = np.clip(steps, 0, 255).astype(np.uint8)
    words = packed.reshape(len(values), -1).view("<u4")
    return [words, scales.astype("<f4"), low.astype("<f4")]


def _write_tensors(
    file: IO[bytes],
    source: Source,
    tensors: list[_Tensor],
    progress: Callable[[float], object] | None,
) -> None:
    """Write a file of the format `safetensors`: a header in JSON, and the values."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    starts: dict[str, int] = {}
    end = 0
    for tensor in tensors:
        for name, (kind, shape) in tensor.parts.items():
            starts[name] = end
            end += math.prod(shape) * (2 if kind == "F16" else 4)
            offsets = [starts[name], end]
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    base = file.tell()
    file.truncate(base + end)
    done = 0
    for tensor in tensors:
        at = {name: base + starts[name] for name in tensor.parts}
        for values in _rows(source, tensor):
            arrays = tensor.arrays(values)
            for name, array in zip(tensor.parts, arrays, strict=True):
                file.seek(at[name])
                file.write(np.ascontiguousarray(array).data)
                at[name] += array.nbytes
                done += array.nbytes
            if progress is not None:
                progress(done / end)


def _rows(source: Source, tensor: _Tensor) -> Iterator[NDArray[np.float32]]:
    """Give the rows of a tensor, as many at a time as are worth it.

    A tensor whose rows are in another order in the source is read whole for each call,
    so only large ones, such as the embedding, are divided.
    """
    rows = tensor.shape[0]
    step = max(1, _SLICE // max(1, math.prod(tensor.shape[1:])))
    if rows <= 2 * step:
        yield source.tensor(tensor.name)
        return
    for start in range(0, rows, step):
        yield source.tensor(tensor.name, start, min(start + step, rows))
