"""Text by each runtime's own calls, as plainly as one can write it, and by eliza.

All have `start(ids)`, which computes a prompt from nothing, and `token()`, which gives
the next id, its text decoded, or None at the end.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pipe import Bare


class Pipe:
    """`for step in session`."""

    def __init__(self, model: Any, max_tokens: int) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.session: Any = None
        self.text = ""

    def stop(self) -> None:
        if self.session is not None:
            self.session.close()

    def start(self, ids: list[int]) -> None:
        self.session = self.model.open(max_tokens=self.max_tokens)
        self.session.prefill(ids)
        self.steps = iter(self.session)

    def token(self) -> int | None:
        step = next(self.steps, None)
        if step is None or not step.ids:
            return None
        self.text += step.text
        return step.ids[0]


class PlainLlama(Bare):
    """llama-cpp-python's low-level calls, with weights and a context of its own."""

    def __init__(self, model: Any, path: str, n_threads: int) -> None:
        super().__init__(path, n_threads, model.backend.n_ctx)
        self.last: int | None = None
        self.text = b""

    def stop(self) -> None:
        pass

    def start(self, ids: list[int]) -> None:
        self.prefill(ids)
        self.last = None

    def token(self) -> int | None:
        lib, context = self.lib, self.context
        if self.last is not None:
            self.one[0] = self.last
            lib.llama_decode(context, lib.llama_batch_get_one(self.one, 1))
        pointer = lib.llama_get_logits_ith(context, -1)
        row = np.ctypeslib.as_array(pointer, (self.n_vocab,))
        token = self.last = int(row.argmax())
        if lib.llama_vocab_is_eog(self.vocab, token):
            return None
        buffer = self.buffer
        size = lib.llama_token_to_piece(self.vocab, token, buffer, 256, 0, True)
        self.text += ctypes.string_at(buffer, size)
        return token


class PlainMlx:
    """mlx-lm's model, called directly; the weights are those that eliza loaded."""

    def __init__(self, model: Any, path: str, n_threads: int) -> None:
        import mlx.core as mx

        shared = model.backend._shared.model
        self.mx, self.model, self.caches = mx, shared._model, shared._caches
        self.vocab = model.vocab
        self.text = b""

    def stop(self) -> None:
        pass

    def start(self, ids: list[int]) -> None:
        self.cache = self.caches.make_prompt_cache(self.model)
        self.feed(ids)

    def feed(self, ids: list[int]) -> None:
        logits = self.model(self.mx.array([ids]), cache=self.cache)
        self.next = self.mx.argmax(logits[0, -1]).item()
        self.fresh = True

    def token(self) -> int | None:
        if not self.fresh:
            self.feed([self.next])
        self.fresh = False
        if self.next in self.vocab.eog:
            return None
        self.text += self.vocab.decode([self.next])
        return self.next


class PlainLitert:
    """`CompiledModel.run_by_name`; the model is the one that eliza loaded."""

    def __init__(self, model: Any, path: str, n_threads: int) -> None:
        self.run = model.backend._shared.runtime._model
        self.vocab = model.vocab
        self.text = b""
        self.inputs: dict[str, Any] = {}
        self.sizes = {}
        create = self.run.create_input_buffer_by_name
        for name in self.run.get_signature_list():
            details = self.run.get_input_tensor_details(name)
            if name != "decode" and not name.startswith("prefill"):
                continue
            small = ("tokens", "input_pos", "mask")
            self.inputs[name] = {part: create(name, part) for part in small}
            self.sizes[name] = int(details["tokens"]["shape"][-1])
            self.n_ctx = int(details["mask"]["shape"][-1])
        details = self.run.get_input_tensor_details("decode")
        keys = [name for name in details if name not in self.inputs["decode"]]
        self.kv = {name: create("decode", name) for name in keys}
        for name, buffer in self.kv.items():
            buffer.write(np.zeros(details[name]["shape"], np.float32))
        self.logits = self.run.create_output_buffer_by_name("decode", "logits")
        width = self.run.get_output_tensor_details("decode")["logits"]["shape"][-1]
        self.width = int(width)

    def stop(self) -> None:
        pass

    def start(self, ids: list[int]) -> None:
        self.position = 0
        sizes = sorted((n, name) for name, n in self.sizes.items())
        rest = list(ids[:-1])
        while rest:  # the smallest call that takes all, or else the largest
            n, name = next((s for s in sizes if s[0] >= len(rest)), sizes[-1])
            self.call(name, rest[:n])
            rest = rest[n:]
        self.feed(ids[-1])

    def call(self, name: str, ids: list[int]) -> None:
        n = self.sizes[name]
        at = np.arange(self.position, self.position + n, dtype=np.int32)
        tokens = np.zeros((1, n), np.int32)
        tokens[0, : len(ids)] = ids
        seen = np.arange(self.n_ctx) <= at[:, None]
        mask = np.where(seen, np.float32(0), np.float32(-1e9))
        inputs = self.inputs[name]
        inputs["tokens"].write(tokens)
        inputs["input_pos"].write(at)
        inputs["mask"].write(mask[None, None])
        outputs = {"logits": self.logits} if name == "decode" else {}
        self.run.run_by_name(name, {**inputs, **self.kv}, {**self.kv, **outputs})
        self.position += len(ids)

    def feed(self, token: int) -> None:
        self.call("decode", [token])
        self.next = int(self.logits.read(self.width, np.float32).argmax())
        self.fresh = True

    def token(self) -> int | None:
        if not self.fresh:
            self.feed(self.next)
        self.fresh = False
        if self.next in self.vocab.eog:
            return None
        self.text += self.vocab.decode([self.next])
        return self.next


PLAIN = {"llama.cpp": PlainLlama, "mlx": PlainMlx, "litert": PlainLitert}
