"""Variants of a model for LiteRT: other names, masks and number types of logits."""

from __future__ import annotations

import io
import struct

import numpy as np

from eliza.backends.litert_layout import Signature, TensorInfo
from eliza.convert.flatbuffer import Array, Number, Table, Tables, Text, pack
from eliza.convert.litertlm import write_litertlm
from eliza.convert.tflite import write_tflite
from eliza.convert.tflite_buffers import Buffers
from eliza.convert.tflite_graph import _FLOAT, Graph, ModelTables, Tensor, _Operator
from eliza.convert.tflite_llama import _Decoder, add_weights
from eliza.files import litertlm

__all__ = ["IDS", "LM", "LOGIT_SCALE", "PLAIN", "TOLERANCE", "rows_of", "signature"]
__all__ += ["container", "variant", "write_files"]

TOLERANCE = 1e-3
IDS = [300, 310, 5, 77] * 6 + [9, 12]

LOGIT_SCALE, LOGIT_ZERO = 0.06, 10

_QUANTIZE = _Operator(114)
_CAST = _Operator(53, options=37)
TYPES = {"float32": 0, "float16": 1, "bool": 6, "int8": 9, "bfloat16": 18}


def variant(
    source, out, *, logits="float32", rename=None, n_ctx=64, sizes=(8,), gain=1, **form
):
    """Write a model whose logits have another type, or whose inputs other names.

    `form` is what `OtherGraph` takes: another layout or type of keys and values,
    another kind of mask. Logits are multiplied by `gain`.
    """
    buffers = Buffers()
    add_weights(buffers, source, "f32", n_ctx)
    model = ModelTables(buffers)
    for n in (*sizes, 1):
        name, end = ("decode", "logits") if n == 1 else (f"prefill_{n}", "cache")
        graph = OtherGraph(name, model, **form)
        model._graphs.append(graph)
        _Decoder(graph, source, n, n_ctx).build(end)
        if "logits" in graph.outputs:
            louder = graph._small(np.array([gain], np.float32))
            tensor = graph.outputs["logits"]
            tensor = tensor if gain == 1 else graph.mul(tensor, louder)
            graph.outputs["logits"] = graph.cast(tensor, logits)
        for old, new in (rename or {}).items():
            for tensors in (graph.inputs, graph.outputs):
                if old in tensors:
                    tensors[new] = tensors.pop(old)
    with open(out, "w+b") as file:
        buffers.write(file, pack(model.table(), b"TFL3"), lambda _: None)
    return out


class OtherGraph(Graph):
    """A graph as other exporters write it.

    Parameters
    ----------
    layout : {"lm", "plain", "heads"}
        How keys and values lie: as LiteRT-LM has them, both as [1, context, heads,
        dim], or both as [1, heads, context, dim].
    kept : {"float32", "float16"}
        The type of keys and values.
    mask : {"float32", "float16", "bool", None}
        Of the input; None for a graph that makes its own.
    scale : float
        What a step of int8 logits is worth.
    """

    def __init__(
        self,
        name,
        model,
        layout="lm",
        kept="float32",
        mask="float32",
        scale=LOGIT_SCALE,
    ):
        super().__init__(name, model)
        self.layout, self.kept, self.mask, self.scale = layout, kept, mask, scale

    def input(self, name, shape, dtype=_FLOAT):
        if name == "mask":
            return self.other_mask(shape)
        if not name.startswith("kv_cache"):
            return super().input(name, shape, dtype)
        shape = tuple(shape[axis] for axis in self.axes(name))
        self.inputs[name] = self.typed(shape, self.kept)
        return self.inputs[name]

    def other_mask(self, shape):
        n_ctx = shape[-1]
        if self.mask is None:
            seen = np.tri(n_ctx, dtype=np.float32)
            table = self._small((seen - 1) * np.float32(1e9))
            return self.reshape(self.gather(table, self.inputs["input_pos"]), *shape)
        self.inputs["mask"] = self.typed(shape, self.mask)
        mask = self.cast(self.inputs["mask"], "float32")
        if self.mask == "bool":
            mask = self.mul(mask, self._small(np.array([1e9], np.float32)))
            mask = self.add_number(mask, -1e9)
        return mask

    def update(self, whole, part, at, name):
        whole = self.cast(whole, "float32", of=self.kept)
        axes = self.axes(name)
        if self.layout != "lm":
            part = self.transpose(part, *axes)
            indices = [self.ints(0)] * 4
            at = 1 if self.layout == "plain" else 2
            indices[at] = self.first(self.inputs["input_pos"])
            at = self.concatenate(indices, 0)
        result = super().update(whole, part, at, name)
        self.outputs[name] = self.cast(result, self.kept)
        if self.layout != "lm":
            result = self.transpose(result, *map(axes.index, range(4)))
        return result

    def axes(self, name):
        """Return which axes of LiteRT-LM's layout follow one another in this one."""
        if "_k_" in name:  # [1, heads, context, dim] there
            return {"plain": (0, 2, 1, 3)}.get(self.layout, (0, 1, 2, 3))
        return {"plain": (0, 3, 1, 2), "heads": (0, 1, 3, 2)}.get(
            self.layout, (0, 1, 2, 3)
        )

    def cast(self, tensor, kind, of=None):
        if kind == (of or "float32") and (of or tensor.dtype == np.float32):
            return tensor
        number = TYPES[kind]
        result = self.typed(tensor.shape, kind)
        if kind == "int8":
            self._operate(_QUANTIZE, [tensor], [result])
        else:
            options = {0: Number("i8", 0), 1: Number("i8", number)}
            self._operate(_CAST, [tensor], [result], options)
        return result

    def typed(self, shape, kind):
        """Return a tensor of a type that the converter has no use for."""
        tensor = self._tensor(shape)
        fields = {**self._tensors[-1].fields, 1: Number("i8", TYPES[kind])}
        if kind == "int8":
            scale = Array(np.array([self.scale], np.float32))
            fields[4] = Table({2: scale, 3: Array(np.array([LOGIT_ZERO], np.int64))})
        self._tensors[-1] = Table(fields)
        return Tensor(tensor.index, shape, None if kind != "float32" else tensor.dtype)


def write_files(source, folder):
    """Write one model three times: m.tflite, m.litertlm, and m8.tflite in int8."""
    options = {"n_ctx": 64, "prefill": (8, 16), "rows": (4,)}
    write_tflite(source, folder / "m.tflite", "f32", **options)
    write_litertlm(source, folder / "m.litertlm", "f32", **options)
    write_tflite(source, folder / "m8.tflite", "int8", **options)
    return folder


def container(path, sections, version=(1, 7, 0)):
    """Write a file with sections: (kind, data, model_type)."""
    entries, at, placed = [], litertlm.BLOCK, []
    for kind, data, model_type in sections:
        items = [
            Table(
                {
                    0: Text("model_type"),
                    1: Number("u8", 9),
                    2: Table({0: Text(model_type)}),
                }
            )
        ]
        fields = {
            0: Tables(items if model_type else []),
            1: Number("u64", at),
            2: Number("u64", at + len(data)),
            3: Number("u8", kind),
        }
        entries.append(Table(fields))
        placed.append((at, data))
        at = -(-(at + len(data)) // litertlm.BLOCK) * litertlm.BLOCK
    header = pack(Table({1: Table({0: Tables(entries)})}))
    out = io.BytesIO()
    out.write(b"LITERTLM" + struct.pack("<III4xQ", *version, 32 + len(header)))
    out.write(header)
    for begin, data in placed:
        out.seek(begin)
        out.write(data)
    path.write_bytes(out.getvalue())
    return path


def rows_of(sequence, n):
    return np.array([sequence.logits(i) for i in range(n)])


def signature(n, cache=None, mask=64, logits=None, **others):
    info = TensorInfo
    kept = {f"kv_cache_{a}_0": info(s, "float32") for a, s in (cache or LM).items()}
    inputs = {
        "tokens": info((1, n), "int32"),
        "input_pos": info((n,), "int32"),
        **kept,
        **others,
    }
    if isinstance(mask, TensorInfo):
        inputs["mask"] = mask
    elif mask:
        inputs["mask"] = info((1, 1, n, mask), "float32")
    outputs = dict(kept)
    if logits:
        outputs["logits"] = info((1, logits, 500), "float32")
    return Signature(inputs, outputs)


LM = {"k": (1, 2, 64, 16), "v": (1, 2, 16, 64)}
PLAIN = {"k": (1, 64, 2, 16), "v": (1, 64, 2, 16)}
