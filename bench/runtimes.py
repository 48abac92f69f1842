"""Each runtime under eliza, beside its own plain loop: SmolLM2, on a processor.

    python bench/runtimes.py                       # about 5 minutes
    python bench/runtimes.py --runtime litert      # one of llama.cpp, mlx, litert
    python bench/runtimes.py --check               # a smoke run on few ids

The packaged SmolLM2 (or --model) is converted for MLX and LiteRT, in int8 and f32: how
long that takes, how large the files are. Then each runtime, in a process of its own,
on the GGUF file as it is or on int8:

load      `eliza.load`, the runtime's import included: the first time (LiteRT packs its
          weights then), and once more in another process
first id  from a prompt of 16 ids that shares nothing with the one before it
step      the ids after it, greedy, with their text; beside it the runtime's own calls:
          llama-cpp-python's low-level functions, mlx-lm's model, LiteRT's
          CompiledModel. They take turns id by id, so that a busy moment hits both
choose    one of 10 actions, prompts that share their beginning, two percentiles
peak      memory of the process before the plain loop is there

Prints tables, or JSON with --json.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _common
import _timing

PACKAGES = {"llama.cpp": "llama_cpp", "mlx": "mlx_lm", "litert": "ai_edge_litert"}
METHODS = ("greedy", "exact")
TARGET = 1.02  # a step of the pipe to one of the plain loop

STORY = (
    ". Once upon a time there was an old lighthouse keeper who lived by the sea with "
    "his daughter, a black cat and a clock that never told the right time. One night"
)
SHOTS = "mute the room -> MUTE\nwrite back to him -> REPLY\n"
ACTIONS = ["REPLY", "IGNORE", "MUTE", "UNMUTE", "FOLLOW", "SEND_EMAIL", "SEND_TOKEN"]
ACTIONS += ["SEARCH_WEB", "SEARCH_FILES", "NONE"]
TEXTS = (
    *("google the opening hours", "do nothing about it", "find my tax papers"),
    *("mail the invoice to Carl", "pay Dan two tokens", "join the news room"),
    *("answer her", "no action is needed", "let them speak again", "look it up"),
)


def peak_mb() -> float:
    """Return the most memory that this process had, in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024 / 1e6
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


# In processes of their own


def convert(args: argparse.Namespace) -> dict[str, Any]:
    """Write one file or folder."""
    from eliza.convert.mlx_folder import write_mlx
    from eliza.convert.source import GgufSource
    from eliza.convert.tflite import write_tflite

    out = Path(args.out)
    write = write_tflite if out.suffix == ".tflite" else write_mlx
    start = time.perf_counter()
    with GgufSource(args.model) as source:
        write(source, out, args.type)
    seconds = time.perf_counter() - start
    files = [*out.iterdir()] if out.is_dir() else [out]
    size = sum(file.stat().st_size for file in files) / 1e6
    return {"seconds": seconds, "mb": size, "peak_mb": peak_mb()}


def load(args: argparse.Namespace) -> tuple[Any, float]:
    """Load the model; return it and the seconds."""
    import eliza

    options = {} if args.runtime == "mlx" else {"n_threads": args.n_threads}
    start = time.perf_counter()
    model = eliza.load(args.out, backend=args.runtime, n_ctx=512, **options)
    return model, time.perf_counter() - start


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of one runtime."""
    model, seconds = load(args)
    result: dict[str, Any] = {"load": seconds, "threads": args.n_threads}
    if args.step == "load":
        return result
    from _loops import PLAIN, Pipe

    prompts = []
    with model:
        for i in range(args.rounds + 1):
            ids = model.vocab.prompt_ids(f"{i}{STORY}")
            prompts.append([int(token) for token in ids[: args.prompt]])
        for method in METHODS:
            result[method] = decisions(model, method, args.decisions)
        ours = Pipe(model, args.tokens)
        ours.start(prompts.pop())
        ours.token()
        ours.stop()
        result["peak_mb"] = peak_mb()
    # Loaded anew: in llama.cpp, which cells of the cache others hold moves quantised
    # logits by enough to flip a near tie, and the ids are to be the same.
    model, _ = load(args)
    with model:
        loops = {
            "pipe": Pipe(model, args.tokens),
            "plain": PLAIN[args.runtime](model, args.out, args.n_threads),
        }
        result |= side_by_side(loops, prompts, args.tokens)
    return result


def decisions(model: Any, method: str, n: int) -> dict[str, float]:
    """Return percentiles of n decisions, in ms; one before them warms up."""
    seconds = []
    choices = [f" {name}" for name in ACTIONS]
    for i in range(n + 1):
        prompt = f"{SHOTS}{TEXTS[i % len(TEXTS)]} ->"
        start = time.perf_counter()
        model.choose(prompt, choices, suffix="\n", method=method)
        seconds.append(1e3 * (time.perf_counter() - start))
    p50, p95 = (_common.percentile(seconds[1:], q) for q in (50, 95))
    return {"p50": p50, "p95": p95, "n": n}


def side_by_side(
    loops: dict[str, Any], prompts: list[list[int]], n: int
) -> dict[str, Any]:
    """Time the loops in turn, id by id; each begins every other time."""
    first: dict[str, list[float]] = {name: [] for name in loops}
    steps: dict[str, list[float]] = {name: [] for name in loops}
    same = True
    for turn, prompt in enumerate(prompts):
        order = list(loops)[:: 1 if turn % 2 else -1]
        last = {}
        for name in order:
            start = time.perf_counter()
            loops[name].start(prompt)
            last[name] = loops[name].token()
            first[name].append(1e3 * (time.perf_counter() - start))
        same &= len(set(last.values())) == 1
        for i in range(n - 1):
            for name in order[:: 1 if i % 2 else -1]:
                start = time.perf_counter()
                last[name] = loops[name].token()
                steps[name].append(1e3 * (time.perf_counter() - start))
            same &= len(set(last.values())) == 1
            if None in last.values():
                break
        for loop in loops.values():
            loop.stop()
    medians = {name: _common.median(values) for name, values in steps.items()}
    pairs = zip(steps["pipe"], steps["plain"], strict=True)
    return {
        "prompt_ids": len(prompts[0]),
        "steps": len(steps["pipe"]),
        "same_ids": same,
        "first_ms": {name: _common.median(values) for name, values in first.items()},
        "step_ms": medians,
        "best_ms": {name: min(values) for name, values in steps.items()},
        "ratio": medians["pipe"] / medians["plain"],
        "ratio_of_best": min(steps["pipe"]) / min(steps["plain"]),
        "over_ms": _common.median([a - b for a, b in pairs]),
    }


# What starts them


def child(step: str, cache: Path, args: argparse.Namespace, **more: Any) -> dict:
    """Run one step in a process of its own; return what it found."""
    values = {**vars(args), "step": step, **more}
    keys = ("step", "model", "out", "type", "runtime", "n_threads", "rounds")
    command = [sys.executable, __file__]
    for key in (*keys, "tokens", "decisions", "prompt"):
        if values.get(key) is not None:
            command += [f"--{key.replace('_', '-')}", str(values[key])]
    done = subprocess.run(
        command,
        env={**os.environ, "ELIZA_CACHE": str(cache)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{step} {more} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def runtimes(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Convert what is needed; measure each runtime."""
    wanted = [args.runtime] if args.runtime else list(PACKAGES)
    found: dict[str, Any] = {"converter": {}, "runtimes": {}, "left_out": []}
    for name in wanted:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            found["left_out"].append(name)
            continue
        if name == "llama.cpp":
            out = Path(args.model)
        else:
            form = "model.tflite" if name == "litert" else "mlx"
            kinds = ("int8",) if args.check else ("f32", "int8")
            for kind in kinds:
                out = folder / f"{kind}-{form}"
                key = f"{'tflite' if name == 'litert' else 'mlx'} {kind}"
                more = {"out": out, "type": kind}
                found["converter"][key] = child("convert", folder, args, **more)
        few = {}
        if name == "mlx" and not args.check:  # a third of a second for each id
            few = {
                "tokens": min(args.tokens, 24),
                "rounds": min(args.rounds, 3),
                "decisions": min(args.decisions, 6),
            }
        more = {"out": out, "runtime": name}
        cold = child("load", folder, args, **more)
        into = found["runtimes"][name] = child("measure", folder, args, **more, **few)
        into["first_load"] = cold["load"]
        into["load_average"] = os.getloadavg()[0]
    return found


def show(found: dict[str, Any]) -> None:
    print(found["machine"])
    for name in found["left_out"]:
        print(f"{name}: {PACKAGES[name]} is not installed")
    rows = [[key, *row.values()] for key, row in found["converter"].items()]
    if rows:
        _timing.report("eliza convert", ["form", "s", "MB", "peak MB"], rows)
    table = found["runtimes"]
    rows = []
    for (name, r), loop in itertools.product(table.items(), ("pipe", "plain")):
        step = r["step_ms"][loop]
        rows.append([name, loop, r["prompt_ids"], r["first_ms"][loop], step])
        rows[-1] += [r["best_ms"][loop], 1e3 / step, r["steps"]]
    _timing.report(
        "greedy text: eliza's pipe and the runtime's own calls, medians in ms",
        ["runtime", "loop", "prompt", "first id", "step", "best", "ids/s", "steps"],
        rows,
    )
    for name, r in table.items():
        print(
            f"{name}: pipe / plain {r['ratio']:.3f}, of the best "
            f"{r['ratio_of_best']:.3f} (target {TARGET}); {r['over_ms']:+.3f} ms an "
            f"id; same ids: {r['same_ids']}"
        )
    columns = ["runtime", "greedy p50", "p95", "exact p50", "p95", "n"]
    columns += ["first load", "load", "peak", "busy"]
    rows = []
    for name, r in table.items():
        rows.append([name, *(r[m][q] for m in METHODS for q in ("p50", "p95"))])
        rows[-1] += [r["greedy"]["n"], r["first_load"], r["load"], r["peak_mb"]]
        rows[-1] += [r["load_average"]]
    title = f"choose, one of {len(ACTIONS)}, in ms; load in s; peak in MB"
    _timing.report(title, columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--runtime", choices=list(PACKAGES))
    parser.add_argument("--n-threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--decisions", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    for hidden in ("--step", "--out", "--type"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        print(json.dumps(convert(args) if args.step == "convert" else measure(args)))
        return
    if args.check:
        args.rounds, args.tokens, args.prompt, args.decisions = 1, 3, 4, 1
    args.model = _common.model_path(args.model)
    with tempfile.TemporaryDirectory() as folder:
        found = {"machine": _common.machine(), **runtimes(args, Path(folder))}
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
