"""Variants of a model for LiteRT: other names, masks and number types of logits."""

from __future__ import annotations

import json

import numpy as np

from eliza.backends.litert_layout import Signature, TensorInfo
from eliza.convert.flatbuffer import Array, Number, Table, pack
from eliza.convert.litertlm import write_litertlm
from eliza.convert.tflite import write_tflite
from eliza.convert.tflite_buffers import Buffers
from eliza.convert.tflite_graph import ModelTables, Tensor, _Operator
from eliza.convert.tflite_llama import add_weights, ending_at
from eliza.files.noted import ABOUT

__all__ = ["IDS", "LM", "LOGIT_SCALE", "PLAIN", "TOLERANCE", "rows_of", "signature"]
__all__ += ["variant", "write_files"]

TOLERANCE = 1e-3
IDS = [300, 310, 5, 77] * 6 + [9, 12]

LOGIT_SCALE, LOGIT_ZERO = 0.06, 10

_QUANTIZE = _Operator(114)
_CAST = _Operator(53, options=37)
_FLOAT16, _INT8 = 1, 9


def variant(source, out, *, logits="float32", rename=None, n_ctx=64, sizes=(8,)):
    """Write a model whose logits have another type, or whose inputs other names."""
    buffers = Buffers()
    add_weights(buffers, source, "f32", n_ctx)
    model = ModelTables(buffers)
    for n in sizes:
        ending_at("cache", f"prefill_{n}", n, model, source, n_ctx)
    ending_at("logits", "decode", 1, model, source, n_ctx)
    for graph in model._graphs:
        if logits != "float32" and "logits" in graph.outputs:
            graph.outputs["logits"] = narrowed(graph, graph.outputs["logits"], logits)
        for old, new in (rename or {}).items():
            for tensors in (graph.inputs, graph.outputs):
                if old in tensors:
                    tensors[new] = tensors.pop(old)
    model.add_metadata(ABOUT, json.dumps({"name": "variant"}).encode())
    with open(out, "w+b") as file:
        buffers.write(file, pack(model.table(), b"TFL3"), lambda _: None)
    return out


def narrowed(graph, tensor, kind):
    number = {"float16": _FLOAT16, "int8": _INT8}[kind]
    index = len(graph._tensors)
    table = graph._tensors[tensor.index]
    fields = {**table.fields, 1: Number("i8", number)}
    if kind == "int8":
        scale = Array(np.array([LOGIT_SCALE], np.float32))
        zero = Array(np.array([LOGIT_ZERO], np.int64))
        fields[4] = Table({2: scale, 3: zero})
    graph._tensors.append(Table(fields))
    result = Tensor(index, tensor.shape)
    operator = _QUANTIZE if kind == "int8" else _CAST
    options = {} if kind == "int8" else {0: Number("i8", 0), 1: Number("i8", number)}
    graph._operate(operator, [tensor], [result], options)
    return result


def write_files(source, folder):
    """Write one model three times: m.tflite, m.litertlm, and m8.tflite in int8."""
    options = {"n_ctx": 64, "prefill": (8, 16), "rows": (4,)}
    write_tflite(source, folder / "m.tflite", "f32", **options)
    write_litertlm(source, folder / "m.litertlm", "f32", **options)
    write_tflite(source, folder / "m8.tflite", "int8", **options)
    return folder


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
