"""What the signatures of a `.tflite` file mean for generating.

Exporters differ in names, shapes and number types, and in how many signatures they
write. Nothing is assumed: what takes ids and gives logits, where keys and values are
kept and along which axis, is read from the signatures themselves; what has no meaning
here is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eliza.errors import BundleError, NotSupported

__all__ = ["CacheInfo", "Head", "Layout", "Signature", "Step", "TensorInfo", "discover"]

_IDS = ("tokens", "token_ids", "input_ids", "ids")
_POSITIONS = ("input_pos", "positions", "position_ids", "pos")
_MASKS = ("mask", "attn_mask", "attention_mask")
_LOGITS = ("logits", "output", "logits_out")
_HIDDEN = "hidden"
_EMBEDDINGS = ("embeddings", "input_embeds", "inputs_embeds", "per_layer_embeddings")

_MASK_TYPES = ("float32", "float16", "bool")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The shape of an input or an output, and the name of its number type."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of one signature by their names."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """One tensor of keys or values.

    Attributes
    ----------
    axis : int
        The axis along which ids lie.
    """

    shape: tuple[int, ...]
    dtype: str
    axis: int


@dataclass(frozen=True, slots=True)
class Step:
    """A signature that takes ids and appends to the cache.

    Attributes
    ----------
    name : str
    n : int
        How many ids it takes.
    ids, positions : str
        The names of its inputs.
    positions_shape : tuple of int
    mask : str or None
        The name of the mask, if it takes one.
    mask_dtype : str
    mask_shape : tuple of int
    out : str or None
        The name of its output, if it gives something for each id: logits, or the hidden
        state that the head is multiplied with.
    out_info : TensorInfo or None
    """

    name: str
    n: int
    ids: str
    positions: str
    positions_shape: tuple[int, ...]
    mask: str | None
    mask_dtype: str
    mask_shape: tuple[int, ...]
    out: str | None
    out_info: TensorInfo | None

    @property
    def hidden(self) -> bool:
        """Whether it ends before the head."""
        return self.out == _HIDDEN


@dataclass(frozen=True, slots=True)
class Head:
    """A signature that takes n hidden states and gives logits for each."""

    name: str
    n: int
    dim: int
    logits: str
    logits_info: TensorInfo


@dataclass(frozen=True)
class Layout:
    """All that can be done with a file.

    Attributes
    ----------
    steps : tuple of Step
        Sorted by n. All that give something give logits, or else all hidden states.
    heads : tuple of Head
        What makes logits of hidden states, sorted by n.
    whole : Step or None
        Where steps give hidden states: what takes one id and gives its logits at once.
    caches : mapping of str to CacheInfo
    n_ctx : int
        How many ids the cache holds.
    width : int
        Of a row of logits.
    """

    steps: tuple[Step, ...]
    heads: tuple[Head, ...]
    whole: Step | None
    caches: Mapping[str, CacheInfo]
    n_ctx: int
    width: int

    @property
    def giving(self) -> tuple[Step, ...]:
        """All steps that give something for each id."""
        steps = self.steps if self.whole is None else (*self.steps, self.whole)
        return tuple(step for step in steps if step.out is not None)


def discover(signatures: Mapping[str, Signature], where: str) -> Layout:
    """Find out what signatures mean.

    Parameters
    ----------
    signatures : mapping of str to Signature
    where : str
        The file, for messages.

    Raises
    ------
    NotSupported
        A signature needs something that is not there; the message names it.
    BundleError
        No signature takes one id and gives its logits.
    """
    _refuse_embeddings(signatures, where)
    taking = {
        name: signature
        for name, signature in signatures.items()
        if any(key in _IDS for key in signature.inputs)
    }
    caches: dict[str, TensorInfo] = {}
    steps = []
    for name, signature in taking.items():
        reader = _Reader(name, signature, where)
        step, kept = reader.step()
        if caches and kept != caches:
            raise NotSupported(
                f"{where}: the signature {name!r} keeps other keys and values than the "
                "others do"
            )
        caches = kept
        steps.append(step)
    steps.sort(key=lambda step: (step.n, step.out is None, step.name))
    heads, whole = _heads(signatures), None
    if heads and any(step.hidden and step.n == 1 for step in steps):
        plain = [step for step in steps if step.n == 1 and not step.hidden]
        whole = next((step for step in plain if step.out is not None), None)
        steps = [step for step in steps if step.hidden or step.out is None]
    else:
        heads = []
        steps = [step for step in steps if not step.hidden]
    if not steps or steps[0].n != 1 or steps[0].out_info is None:
        listed = ", ".join(signatures) or "none"
        raise BundleError(
            f"{where} has no signature that takes one id and gives its logits; it has "
            f"{listed}"
        )
    n_ctx = _context(caches, steps, where)
    rows = [head.logits_info for head in heads]
    giving = [whole] if heads else steps
    rows += [step.out_info for step in giving if step and step.out_info is not None]
    width = rows[0].shape[-1]
    if any(info.shape[-1] != width for info in rows):
        raise NotSupported(f"{where}: signatures differ in the width of logits")
    infos = {name: _cache(name, info, n_ctx, where) for name, info in caches.items()}
    return Layout(tuple(steps), tuple(heads), whole, infos, n_ctx, width)


def _heads(signatures: Mapping[str, Signature]) -> list[Head]:
    """Return the signatures that make logits of hidden states, one of them of one."""
    found = []
    for name, signature in signatures.items():
        hidden, logits = signature.inputs.get(_HIDDEN), signature.outputs.get("logits")
        if hidden is None or logits is None or len(signature.inputs) > 1:
            continue
        if len(hidden.shape) == 3 and logits.shape[:-1] == hidden.shape[:-1]:
            n, dim = hidden.shape[1:]
            found.append(Head(name, n, dim, "logits", logits))
    found.sort(key=lambda head: head.n)
    return found if found and found[0].n == 1 else []


def _refuse_embeddings(signatures: Mapping[str, Signature], where: str) -> None:
    for name, signature in signatures.items():
        found = [key for key in signature.inputs if key in _EMBEDDINGS]
        if found and name.startswith(("decode", "prefill")):
            raise NotSupported(
                f"{where}: the signature {name!r} takes {found[0]!r}, which comes from "
                "an embedder apart from the model, as in bundles of Gemma; eliza runs "
                "models that take ids. Use LiteRT-LM itself for this one"
            )


class _Reader:
    """Reads one signature."""

    def __init__(self, name: str, signature: Signature, where: str) -> None:
        self.name = name
        self.inputs = dict(signature.inputs)
        self.outputs = dict(signature.outputs)
        self.where = f"{where}: the signature {name!r}"

    def step(self) -> tuple[Step, dict[str, TensorInfo]]:
        """Return what it does, and what it keeps."""
        ids_name, ids = self.take(_IDS, "int32")
        if len(ids.shape) != 2 or ids.shape[0] != 1:
            raise NotSupported(f"{self.where} takes ids of shape {ids.shape}")
        n = ids.shape[1]
        at_name, at = self.take(_POSITIONS, "int32")
        if int(np.prod(at.shape)) != n:
            raise NotSupported(f"{self.where} takes positions of shape {at.shape}")
        mask_name, mask = self.mask(n)
        caches = {}
        for name, info in self.inputs.items():
            if self.outputs.pop(name, None) != info:
                raise NotSupported(
                    f"{self.where} has an input {name!r} of type {info.dtype} and "
                    f"shape {info.shape}, which eliza does not know; it gives ids, "
                    "positions, a mask, and what the model itself put out"
                )
            caches[name] = info
        out_name, out = self.out(n)
        step = Step(
            name=self.name,
            n=n,
            ids=ids_name,
            positions=at_name,
            positions_shape=at.shape,
            mask=mask_name,
            mask_dtype=mask.dtype,
            mask_shape=mask.shape,
            out=out_name,
            out_info=out,
        )
        return step, caches

    def take(self, names: tuple[str, ...], dtype: str) -> tuple[str, TensorInfo]:
        """Remove the input that has one of these names."""
        for name in names:
            info = self.inputs.pop(name, None)
            if info is not None and info.dtype == dtype:
                return name, info
            if info is not None:
                raise NotSupported(f"{self.where} takes {name!r} as {info.dtype}")
        raise NotSupported(f"{self.where} has no input {names[0]!r}")

    def mask(self, n: int) -> tuple[str | None, TensorInfo]:
        for name in _MASKS:
            info = self.inputs.pop(name, None)
            if info is None:
                continue
            fits = info.shape[-2:-1] == (n,) and {1, *info.shape[:-2]} == {1}
            if not fits or info.dtype not in _MASK_TYPES:
                raise NotSupported(
                    f"{self.where} takes a mask of type {info.dtype} and shape "
                    f"{info.shape}"
                )
            return name, info
        return None, TensorInfo((), "")

    def out(self, n: int) -> tuple[str | None, TensorInfo | None]:
        """Return the name and the form of what it gives for each id, if anything.

        Logits for the last id alone are of no use where a chunk is padded.
        """
        for name, info in self.outputs.items():
            if name in (*_LOGITS, _HIDDEN) and info.shape[:-1] == (1, n):
                del self.outputs[name]
                self.check_outputs()
                return name, info
        self.check_outputs()
        return None, None

    def check_outputs(self) -> None:
        others = [name for name in self.outputs if name not in _LOGITS]
        if others:
            raise NotSupported(
                f"{self.where} has an output {others[0]!r}, which eliza does not know"
            )


def _context(caches: Mapping[str, TensorInfo], steps: list[Step], where: str) -> int:
    """Return how many ids the cache holds."""
    for step in steps:
        if step.mask is not None:
            return step.mask_shape[-1]
    # Without a mask: the axis that keys and values have in common wherever it is.
    # Both are [1, context, heads, dim], or the values have the last two exchanged.
    shapes = {info.shape for info in caches.values()}
    if len(shapes) == 1:
        (shape,) = shapes
        if len(shape) == 4:
            return shape[1]
    if len(shapes) == 2:
        a, b = shapes
        moved = [i for i in range(min(len(a), len(b))) if a[i] != b[i]]
        if len(a) == len(b) and sorted(a) == sorted(b) and moved:
            return max(a[i] for i in moved)
    raise NotSupported(f"{where}: no axis of the keys and values is that of the ids")


def _cache(name: str, info: TensorInfo, n_ctx: int, where: str) -> CacheInfo:
    axes = [i for i, size in enumerate(info.shape) if size == n_ctx]
    if not axes:
        raise NotSupported(
            f"{where}: {name!r} of shape {info.shape} has no axis of {n_ctx} ids; a "
            "state that cannot be cut back is not supported"
        )
    # Where sizes coincide: as LiteRT-LM has it, values with ids last, keys before.
    axis = axes[0]
    if len(axes) > 1 and len(info.shape) == 4 and axes[0] != 1:
        axis = axes[-1] if "_v_" in name or name.endswith("_v") else 2
    return CacheInfo(info.shape, info.dtype, axis)
