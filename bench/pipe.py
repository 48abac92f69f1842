"""What the pipe costs over a bare loop, and what drafts and forced runs save.

    python bench/pipe.py                # about 2 minutes
    python bench/pipe.py --check        # a smoke run on few ids

Greedy text of the packaged SmolLM2 (or --model), after a prompt that is computed
before the clock starts:

bare    llama-cpp-python's low-level calls, one id at a time, argmax by NumPy
pipe    `for step in session`, texts of the steps included
lookup  the pipe with `draft="lookup"`, on prose and on a text that repeats its prompt
Llama   `llama_cpp.Llama.__call__` with temperature 0
enums   a JSON object whose fields are choices: passes against ids

Runs are interleaved and their medians compared. Prints a table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import _common
import _timing

PROSE = (
    "<|im_start|>user\nTell me a long story about a lighthouse keeper and the "
    "sea.<|im_end|>\n<|im_start|>assistant\n"
)
NOTE = (
    "The lighthouse on the cliff was built in 1872 by two brothers from Bergen. Every "
    "evening the older one climbed the ninety-six steps, trimmed the wick, and wrote "
    "the weather into a black notebook. When the fog came in, the younger brother rang "
    "the bell once a minute until morning. In the great storm of 1891 a ship with "
    "forty passengers passed the rocks by the width of a boat, and the captain sent "
    "them a barrel of oranges every winter for the rest of his life."
)
REPEAT = (
    f"First copy:\n{NOTE}\n\nSecond copy:\n{NOTE}\n\nThird copy:\n{NOTE}\n\n"
    "Fourth copy:\n"
)
FIELDS = {
    "action": ["REPLY", "IGNORE", "SEND_MESSAGE", "SCHEDULE_MEETING", "SEARCH_WEB"],
    "priority": ["low", "medium", "high", "urgent"],
    "department": ["sales", "support", "engineering", "human resources", "finance"],
    "language": ["English", "German", "French", "Spanish", "Portuguese"],
    "sentiment": ["positive", "negative", "neutral"],
    "needs_approval": ["true", "false"],
}


class Bare:
    """The least loop that one can write over llama-cpp-python's low-level calls."""

    def __init__(self, path: str, n_threads: int, n_ctx: int) -> None:
        from llama_cpp import llama_cpp as lib

        self.lib = lib
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        self.model = lib.llama_model_load_from_file(path.encode(), params)
        options = lib.llama_context_default_params()
        options.n_ctx = n_ctx
        options.n_threads = options.n_threads_batch = n_threads
        options.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.no_perf = True
        self.context = lib.llama_init_from_model(self.model, options)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocab)
        self.memory = lib.llama_get_memory(self.context)
        self.one = (ctypes.c_int32 * 1)()
        self.buffer = ctypes.create_string_buffer(256)

    def prefill(self, ids: list[int]) -> None:
        self.lib.llama_memory_seq_rm(self.memory, 0, -1, -1)
        array = (ctypes.c_int32 * len(ids))(*ids)
        batch = self.lib.llama_batch_get_one(array, len(ids))
        assert self.lib.llama_decode(self.context, batch) == 0

    def steps(self) -> Iterator[int]:
        lib, context, one, buffer = self.lib, self.context, self.one, self.buffer
        text = b""
        while True:
            pointer = lib.llama_get_logits_ith(context, -1)
            row = np.ctypeslib.as_array(pointer, (self.n_vocab,))
            token = int(row.argmax())
            if lib.llama_vocab_is_eog(self.vocab, token):
                return
            size = lib.llama_token_to_piece(self.vocab, token, buffer, 256, 0, True)
            text += buffer.raw[:size]
            yield token
            one[0] = token
            lib.llama_decode(context, lib.llama_batch_get_one(one, 1))

    def close(self) -> None:
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)


class Runs:
    """Times of one way of running, and what it gave."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.steps: list[float] = []
        self.ids: tuple[int, ...] = ()
        self.counters: Any = None

    @property
    def per_id(self) -> float:
        """Seconds; of single steps, where they were timed: noise moves it less."""
        if self.steps:
            return _common.median(self.steps)
        return _common.median(self.seconds) / max(1, len(self.ids))


def pipe(model: Any, ids: list[int], n: int, runs: Runs, **options: Any) -> None:
    with model.open(max_tokens=n, **options) as session:
        session.prefill(ids)
        before = session.counters
        start = time.perf_counter()
        text = "".join(step.text for step in session)
        runs.seconds.append(time.perf_counter() - start)
        runs.ids = session.ids
        runs.counters = [b - a for a, b in zip(before, session.counters, strict=True)]
        assert session.output.decode(errors="replace") == text


def side_by_side(loop: Bare, model: Any, ids: list[int], n: int, runs: Any) -> None:
    """Generate the same text in both, id by id in turn: noise then hits both alike."""
    loop.prefill(ids)
    bare = loop.steps()
    with model.open(max_tokens=n) as session:
        session.prefill(ids)
        out: list[int] = []
        turns = [("bare", lambda: out.append(next(bare))), ("pipe", session.next)]
        for i in range(n):
            for name, step in turns if i % 2 else turns[::-1]:
                start = time.perf_counter()
                step()
                if i:  # the first has its row already
                    runs[name].steps.append(time.perf_counter() - start)
        runs["pipe"].ids, runs["bare"].ids = session.ids, tuple(out)


def high_level(llama: Any, prompt: str, n: int, runs: Runs) -> None:
    llama(prompt, max_tokens=1, temperature=0)  # the prompt's pass, which it keeps
    start = time.perf_counter()
    answer = llama(prompt, max_tokens=n, temperature=0)
    runs.seconds.append(time.perf_counter() - start)
    runs.ids = (0,) * answer["usage"]["completion_tokens"]


def enums(model: Any) -> tuple[str, int, int]:
    """Write a JSON object of choices; return it, its ids, and the passes it took."""
    prompt = (
        "<|im_start|>user\nMy invoice is wrong and nobody answers the phone! Classify "
        "this message as JSON.<|im_end|>\n<|im_start|>assistant\n"
    )
    n_ids = 0
    with model.open() as session:
        session.prefill(prompt)
        before = session.counters.passes
        lead = "{"
        text = ""
        for field, choices in FIELDS.items():
            spans = [f'{lead}"{field}": "{choice}"' for choice in choices]
            session.set_token_trie(model.vocab.trie(spans))
            text += "".join(step.text for step in session)
            lead = ", "
        n_ids = len(session.ids)
        passes = session.counters.passes - before
    return text + "}", n_ids, passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--n-threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        args.rounds, args.tokens = 1, 8
    import llama_cpp

    import eliza

    path = _common.model_path(args.model)
    n_ctx = 1024
    names = ("bare", "pipe", "Llama", "plain prose", "lookup prose")
    names += ("plain repeat", "lookup repeat")
    runs = {name: Runs() for name in names}
    n, long = args.tokens, 2 * args.tokens
    with eliza.load(path, n_ctx=n_ctx, n_threads=args.n_threads) as model:
        # After eliza, which routes the library's log away from the terminal.
        loop = Bare(path, args.n_threads, n_ctx)
        llama = llama_cpp.Llama(
            path, n_ctx=n_ctx, n_threads=args.n_threads, verbose=False, flash_attn=False
        )
        prose = model.vocab.prompt_ids(PROSE)
        repeat = model.vocab.prompt_ids(REPEAT)
        for i in range(args.rounds):
            order = list(names) if i % 2 else list(names)[::-1]
            for name in order:
                into = runs[name]
                if name == "pipe":
                    side_by_side(loop, model, prose, n, runs)
                elif name == "bare":
                    continue  # with the pipe
                elif name == "Llama":
                    high_level(llama, PROSE, n, into)
                else:
                    draft = "lookup" if name.startswith("lookup") else None
                    ids = prose if name.endswith("prose") else repeat
                    pipe(model, ids, long, into, draft=draft)
        text, n_ids, passes = enums(model)
        loop.close()
        llama.close()
    result = {
        "machine": _common.machine(),
        "ms_per_id": {name: 1e3 * into.per_id for name, into in runs.items()},
        "ids": {name: len(into.ids) for name, into in runs.items()},
        "pipe_to_bare": runs["pipe"].per_id / runs["bare"].per_id,
        "pipe_to_llama": runs["pipe"].per_id / runs["Llama"].per_id,
        "same_ids_as_bare": runs["pipe"].ids == runs["bare"].ids,
        "lookup_speed": {
            kind: runs[f"plain {kind}"].per_id / runs[f"lookup {kind}"].per_id
            for kind in ("prose", "repeat")
        },
        "lookup_passes": {
            kind: runs[f"lookup {kind}"].counters[0] for kind in ("prose", "repeat")
        },
        "lookup_drafted_accepted": {
            kind: runs[f"lookup {kind}"].counters[4:] for kind in ("prose", "repeat")
        },
        "enums": {"text": text, "ids": n_ids, "passes": passes},
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['machine']}")
    _timing.report(
        f"greedy text, medians of {args.rounds} runs",
        ["way", "ids", "ms per id", "passes", "drafted", "accepted"],
        [
            [
                name,
                len(into.ids),
                1e3 * into.per_id,
                *((into.counters[0], *into.counters[4:]) if into.counters else "---"),
            ]
            for name, into in runs.items()
        ],
    )
    print(
        f"\npipe / bare loop: {result['pipe_to_bare']:.3f} (same ids: "
        f"{result['same_ids_as_bare']}); pipe / Llama: {result['pipe_to_llama']:.3f}"
    )
    speed = result["lookup_speed"]
    print(
        f"lookup / plain, speed: {speed['prose']:.2f} on prose, "
        f"{speed['repeat']:.2f} on text that repeats its prompt"
    )
    print(f"enums: {n_ids} ids in {passes} passes: {text}")


if __name__ == "__main__":
    main()
