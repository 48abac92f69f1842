"""What finding a compiled set of choices again costs, by ids and by text.

    python bench/cache.py [--csv FILE] [--check] [--model FILE]

    by ids     `TrieCache.get` of leaves that are there: the key (reading, checking and
               sorting the leaves, SHA-256) and what is beside it; the build it saves
    by text    `Vocab.place` with a cache: a set that is there, after a prompt of 200
               ids given as ids, or as text, which is tokenized; and without a cache

Minima over interleaved rounds, in microseconds.
"""

from __future__ import annotations

import argparse
from functools import partial

import _common
import _sets
import eliza
from _timing import Case, measure, report, write_csv
from _vocabs import names
from eliza import Trie, TrieCache
from eliza._cache import Recipe

SIZES = (30, 1_000, 10_000)
TARGET = 2.0  # microseconds beside the key


def by_ids(vocab, rounds, small):
    rows = []
    for n in SIZES[: 1 if small else None]:
        leaves = {name: vocab.encode(name) for name in names(n)}
        cache = TrieCache()
        number = max(1, 20_000 // n)
        key = Case(Recipe, (leaves, vocab.n_vocab), number)
        hit = Case(partial(cache.get, leaves, n_vocab=vocab.n_vocab), (), number)
        build = Case(
            partial(Trie.from_tokens, leaves, n_vocab=vocab.n_vocab), (), number
        )
        found = Recipe(leaves, vocab.n_vocab).key
        look = Case(partial(cache.lookup, found, None), (), number)
        hit.call()
        measure([key, hit, look, build], rounds)
        assert cache.stats().misses == 1
        rows.append([n, *(case.best * 1e6 for case in (hit, key, look, build)), TARGET])
    return rows


def by_text(vocab, rounds, small):
    rows = []
    for n in SIZES[: 1 if small else None]:
        choices = names(n)
        cache = TrieCache()
        text = _sets.prompt(list(_sets.SHORT), "What's the weather in Paris?")
        ids = vocab.prompt_ids(text)
        number = max(1, 2_000 // n)
        cases = [
            Case(partial(vocab.place, ids, choices, '"', cache), (), number),
            Case(partial(vocab.place, text, choices, '"', cache), (), number),
            Case(partial(vocab.prompt_ids, text), (), number),
            Case(partial(vocab.place, ids, choices, '"'), (), max(1, number // 20)),
        ]
        measure(cases, rounds)
        assert cache.stats().misses == 1
        rows.append([n, *(case.best * 1e6 for case in cases)])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", help="write the figures here")
    parser.add_argument("--model", help="a GGUF file; by default the packaged SmolLM2")
    parser.add_argument("--check", action="store_true", help="a short run, for CI")
    options = parser.parse_args()
    print(_common.machine())
    rounds = 2 if options.check else 15
    with eliza.load(_common.model_path(options.model), n_ctx=64) as model:
        ids = by_ids(model.vocab, rounds, options.check)
        text = by_text(model.vocab, rounds, options.check)
    columns = ["leaves", "hit us", "key us", "beside it us", "build us", "target us"]
    report("TrieCache.get", columns, ids)
    more = ["choices", "hit us", "hit, text us", "prompt alone us", "no cache us"]
    report("Vocab.place", more, text)
    print(f"\n{_common.machine()}")
    if options.csv:
        write_csv(options.csv, columns, ids)


if __name__ == "__main__":
    main()
