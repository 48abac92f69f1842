"""The weights of a Llama in a GGUF file, under the names that Hugging Face gives them.

What a converter cannot carry over is refused here, before anything is written: a model
that computes something else than it was trained to is worse than none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.errors import BundleError, InvalidArgument, NotSupported, shown
from eliza.files.gguf import GgufFile, GgufTensor

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    Weights = NDArray[np.float32]

__all__ = ["GgufSource", "LlamaConfig"]

#: Names of the tensors that stand once in a file, and of those in each layer.
_WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}

#: Values of the metadata that change what is computed, and where they change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attention.scale": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.key_length_mla": (),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "use_parallel_residual": (False,),
}


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a Llama.

    Attributes
    ----------
    n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx_train : int
    rope_theta : float
        The base of the rotary embedding.
    norm_eps : float
    tied : bool
        Whether the head is the embedding; there is no `lm_head.weight` then.
    name : str
        What the model calls itself, or "".
    """

    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    rope_theta: float
    norm_eps: float
    tied: bool
    name: str


class GgufSource:
    """A GGUF file with a Llama that can be converted; a context manager.

    Weights of the quantised kinds need the package `gguf` (extra `convert`).

    Parameters
    ----------
    path : str or path

    Attributes
    ----------
    config : LlamaConfig
    raw_tokenizer : mapping of str to object
        All of the metadata under `tokenizer.`, the keys as they are.
    shapes : mapping of str to tuple of int
        The shape of each tensor by its name in Hugging Face's way, in the order of the
        computation: the embedding, the layers, the norm and, unless tied, the head.

    Raises
    ------
    BundleError
        The file is missing, cut short, damaged, or lacks tensors.
    NotSupported
        It is not a Llama, or one with something that would be lost; the message names
        it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = GgufFile(path)
        self.path = self._file.path
        try:
            self.config = _config(self._file)
            self._tensors = _tensors(self._file, self.config)
        except BaseException:
            self.close()
            raise
        self.shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(
            {name: tensor.shape for name, tensor in self._tensors.items()}
        )
        self.raw_tokenizer: Mapping[str, Any] = MappingProxyType(
            {
                key: value
                for key, value in self._file.metadata.items()
                if key.startswith("tokenizer.")
            }
        )

    def tensor(self, name: str, start: int = 0, stop: int | None = None) -> Weights:
        """Return the values of a tensor, or of some of its rows.

        The rows of queries and keys are in Hugging Face's order: the two halves of a
        head that are rotated together lie one after the other.

        Parameters
        ----------
        name : str
            One of `shapes`.
        start, stop : int
            The rows; all of them by default.

        Returns
        -------
        float32 array
            The caller's own.

        Raises
        ------
        BundleError
            The file cannot be read, or a value is not finite.
        NotSupported
            The number type needs the package `gguf`, or is not known to it.
        """
        if name not in self._tensors:
            raise InvalidArgument(f"{shown(name)} is not a tensor of {self.path}")
        tensor = self._tensors[name]
        heads = self._heads(name)
        if heads:
            return _halves(self._values(tensor, 0, None), heads)[start:stop]
        if len(tensor.shape) == 1:  # one row for the file, as many as values for us
            return self._values(tensor, 0, None)[start:stop]
        return self._values(tensor, start, stop)

    def _heads(self, name: str) -> int:
        """Return the number of heads whose rows llama.cpp has put in another order."""
        if name.endswith("q_proj.weight"):
            return self.config.n_heads
        return self.config.n_kv_heads if name.endswith("k_proj.weight") else 0

    def _values(self, tensor: GgufTensor, start: int, stop: int | None) -> Weights:
        data = self._file.read(tensor, start, stop)
        with np.errstate(all="ignore"):
            values = _as_float32(data, tensor).reshape(-1, *tensor.shape[1:])
            total = float(values.sum(dtype=np.float64))
        if not math.isfinite(total):
            raise BundleError(
                f"{self.path} is damaged: tensor {tensor.name} has values that are not "
                "finite"
            )
        return values

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        """Return the source itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


def _halves(values: Weights, heads: int) -> Weights:
    """Put the rows (0, half, 1, half + 1, …) of each head back in order."""
    pairs = values.reshape(heads, len(values) // heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _as_float32(data: NDArray[np.uint8], tensor: GgufTensor) -> Weights:
    if tensor.kind == "F32":
        return data.view("<f4").astype(np.float32, copy=False)
    if tensor.kind == "F16":
        return data.view("<f2").astype(np.float32)
    if tensor.kind == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise NotSupported(
            f"weights of type {tensor.kind} need the package gguf ({error}): "
            "pip install 'eliza[convert]'"
        ) from error
    rows = data.reshape(-1, tensor.row_bytes)
    try:
        return dequantize(rows, GGMLQuantizationType[tensor.kind])
    except (NotImplementedError, KeyError):
        raise NotSupported(
            f"tensor {tensor.name} has the type {tensor.kind}, which the package gguf "
            "cannot read; convert from a file with another quantisation"
        ) from None


# What the file says of itself


def _config(file: GgufFile) -> LlamaConfig:
    path, metadata = file.path, file.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise NotSupported(
            f"{path} is of the architecture {architecture!r}; eliza converts 'llama'"
        )
    if metadata.get("split.count", 0) not in (0, 1):
        raise NotSupported(
            f"{path} is one of {metadata['split.count']} parts; join them with "
            "llama-gguf-split --merge first"
        )
    for key, neutral in _NEUTRAL.items():
        value = metadata.get(f"llama.{key}")
        if value is not None and value not in neutral:
            raise NotSupported(
                f"{path} has llama.{key} = {shown(str(value))}, which eliza does not "
                "convert"
            )
    number = _Numbers(path, metadata)
    n_embd, n_heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", n_embd // n_heads)
    n_kv_heads = number("attention.head_count_kv", n_heads)
    n_rope = number("rope.dimension_count", head_dim)
    n_values = number("attention.value_length", head_dim)
    if n_rope != head_dim or n_values != head_dim or head_dim % 2:
        raise NotSupported(
            f"{path} has heads of {head_dim} keys and {n_values} values, {n_rope} of "
            "them rotated; eliza converts heads with as many of each, an even number"
        )
    if n_heads % n_kv_heads:
        raise BundleError(f"{path} has {n_heads} heads for {n_kv_heads} of keys")
    if "token_embd.weight" not in file.tensors:
        raise BundleError(f"{path} has no tensor token_embd.weight")
    return LlamaConfig(
        n_layers=number("block_count"),
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_ff=number("feed_forward_length"),
        n_vocab=file.tensors["token_embd.weight"].shape[0],
        n_ctx_train=number("context_length"),
        rope_theta=number.real("rope.freq_base", 10000.0),
        norm_eps=number.real("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in file.tensors,
        name=str(metadata.get("general.name", "")),
    )


class _Numbers:
    """Reads numbers of the metadata under `llama.`."""

    def __init__(self, path: str, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.metadata = metadata

    def __call__(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if type(value) is list:
            if len({*value}) > 1:
                raise NotSupported(
                    f"{self.path} has layers that differ in llama.{key}; eliza "
                    "converts models whose layers are alike"
                )
            value = value[0] if value else None
        if type(value) is not int or not 0 < value < 1 << 31:
            raise BundleError(f"{self.path}: llama.{key} is {value!r}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if type(value) is not float or not 0 < value < math.inf:
            raise BundleError(f"{self.path}: llama.{key} is {value!r}")
        return value

    def _get(self, key: str, default: object) -> Any:
        value = self.metadata.get(f"llama.{key}", default)
        if value is None:
            raise BundleError(f"{self.path} does not say llama.{key}")
        return value


def _tensors(file: GgufFile, config: LlamaConfig) -> dict[str, GgufTensor]:
    """Return the tensors by their other names, after comparing their shapes."""
    found: dict[str, GgufTensor] = {}
    for name, ours, shape in _expected(config):
        tensor = file.tensors.get(ours)
        if tensor is None:
            raise BundleError(f"{file.path} has no tensor {ours}")
        if tensor.shape != shape:
            raise BundleError(
                f"{file.path}: tensor {ours} has shape {tensor.shape}, not {shape}"
            )
        found[name] = tensor
    known = {tensor.name for tensor in found.values()}
    for name, tensor in file.tensors.items():
        if name not in known and not _is_neutral(file, tensor):
            raise NotSupported(
                f"{file.path} has a tensor {shown(name)} of shape {tensor.shape}, for "
                "which there is no place in what eliza writes"
            )
    return found


def _expected(config: LlamaConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Give the names and shapes of all tensors."""
    n, wide = config.n_embd, config.n_heads * config.head_dim
    narrow = config.n_kv_heads * config.head_dim
    shapes = {
        "input_layernorm": (n,),
        "self_attn.q_proj": (wide, n),
        "self_attn.k_proj": (narrow, n),
        "self_attn.v_proj": (narrow, n),
        "self_attn.o_proj": (n, wide),
        "post_attention_layernorm": (n,),
        "mlp.gate_proj": (config.n_ff, n),
        "mlp.up_proj": (config.n_ff, n),
        "mlp.down_proj": (n, config.n_ff),
    }
    embedding, norm, head = _WHOLE
    yield embedding, _WHOLE[embedding], (config.n_vocab, n)
    for i in range(config.n_layers):
        for name, ours in _LAYER.items():
            shape = shapes[name.removesuffix(".weight")]
            yield f"model.layers.{i}.{name}", f"blk.{i}.{ours}", shape
    yield norm, _WHOLE[norm], (n,)
    if not config.tied:
        yield head, _WHOLE[head], (config.n_vocab, n)


def _is_neutral(file: GgufFile, tensor: GgufTensor) -> bool:
    """Whether a tensor changes nothing: factors of the rotation that are all 1."""
    if tensor.name.rpartition(".")[0].rpartition(".")[2] == "attn_rot_embd":
        return True  # the frequencies, which llama.cpp computes itself
    if tensor.name != "rope_freqs.weight" or tensor.kind != "F32":
        return False
    return bool((file.read(tensor).view("<f4") == 1.0).all())
