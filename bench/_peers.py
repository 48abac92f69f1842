"""The engines that bench/kernels.py compares, each used as its own documents say."""

from __future__ import annotations

import ctypes
import importlib
import json
import re
from functools import partial

import numpy as np

from _engine import MINUS_INF, Bits, Engine
from eliza import Trie
from eliza.spelling import Spellings


class OfCursor(Engine):
    """What a cursor of eliza gives."""

    package = "eliza"

    def start(self, compiled: Trie | Spellings) -> None:
        cursor = compiled.cursor(exits=[self.vocabulary.eos])
        words = np.zeros((self.n_vocab + 31) // 32, np.int32)
        self.reset, self.accept = cursor.reset, cursor.accept
        self.pick, self.apply, self.allowed = cursor.argmax, cursor.mask, cursor.allowed
        self.mask = partial(cursor.bitmask, words)
        self.logprobs = partial(cursor.logprobs, whole_row=True)


class Eliza(OfCursor):
    name = "eliza"
    own_spelling = True

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        vocabulary.vocab.trie(["a", "ab"])  # it looks for its end ids when first used

    def build(self, names):
        self.start(self.vocabulary.vocab.trie(names))

    def build_from_ids(self, leaves):
        self.start(Trie.from_tokens(leaves, n_vocab=self.n_vocab))


class ElizaAny(OfCursor):
    """eliza with `spelling="all"`: what the engines that work on bytes allow."""

    name = "eliza, any spelling"

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        vocabulary.vocab.trie(["a", "ab"], spelling="all")  # sorts the vocabulary

    def build(self, names):
        self.start(self.vocabulary.vocab.trie(names, spelling="all"))


class NumPy(Engine):
    """A dict for each node, and NumPy, as one would write it for oneself."""

    name, package = "NumPy", "numpy"
    own_spelling = True

    def build(self, names):
        encode = self.vocabulary.vocab.encode
        self.build_from_ids({name: encode(name) for name in names})

    def build_from_ids(self, leaves):
        eos = self.vocabulary.eos
        root: dict = {}
        for ids in leaves.values():
            node = root
            for token in ids:
                node = node.setdefault(token, {})
            node[eos] = {}
        self.root, self.arrays = root, {}
        self.prepare(root)
        self.reset()

    def prepare(self, node):
        self.arrays[id(node)] = np.array(sorted(node), np.int64)
        for token, child in node.items():
            if token != self.vocabulary.eos:
                self.prepare(child)

    def reset(self):
        self.node, self.ids = self.root, self.arrays[id(self.root)]

    def accept(self, token):
        self.node = self.node[token]
        self.ids = self.arrays[id(self.node)]

    def allowed(self):
        return self.ids

    def mask(self):
        out = np.full(self.n_vocab, MINUS_INF)
        out[self.ids] = 0
        return out

    def pick(self, row):
        return (row + self.mask()).argmax()

    def by_hand(self, row):
        ids = self.ids
        return ids[row[ids].argmax()]

    def apply(self, row):
        row += self.mask()

    def logprobs(self, row):
        top = row.max()
        return row[self.ids] - (top + np.log(np.exp(row - top).sum()))


class LLGuidance(Bits):
    name = package = "llguidance"

    def __init__(self, vocabulary):
        from llguidance.llamacpp import lltokenizer_from_vocab

        super().__init__(vocabulary)
        self.tokenizer = lltokenizer_from_vocab(vocabulary.pointer)

    def build(self, names):
        import llguidance.numpy as kernels
        from llguidance import LLMatcher

        # One regular expression: as a rule `a | b`, more than 2,000 are refused.
        pattern = "|".join(map(re.escape, names))
        matcher = LLMatcher(
            self.tokenizer, LLMatcher.grammar_from_regex(pattern), log_level=0
        )
        if matcher.is_error():
            raise RuntimeError(matcher.get_error())
        self.make_words()
        self.matcher = matcher
        rows = self.words.reshape(1, -1)
        fill_bits, apply_bits = (
            kernels.fill_next_token_bitmask,
            kernels.apply_token_bitmask_inplace,
        )

        def pick(row):
            fill_bits(matcher, rows)
            apply_bits(row, rows)
            return row.argmax()

        self.fill = lambda: fill_bits(matcher, rows)
        self.apply = lambda row: apply_bits(row, rows)
        self.from_words()
        self.reset, self.accept, self.pick = matcher.reset, matcher.consume_token, pick


class Outlines(Bits):
    name = package = "outlines-core"

    def __init__(self, vocabulary):
        from outlines_core import Vocabulary as Pieces

        super().__init__(vocabulary)
        pieces: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.texts):
            if text:
                pieces.setdefault(text, []).append(token)
        self.pieces = Pieces(vocabulary.eos, pieces)
        try:
            from outlines_core.kernels import numpy as kernels  # needs numba
        except ImportError:
            self.kernel = None
        else:
            self.kernel = kernels.apply_token_bitmask_inplace
            self.make_words()
            self.kernel(np.zeros(self.n_vocab, np.float32), self.words)  # compiles

    def build(self, names):
        from outlines_core import Guide, Index

        guide = Guide(Index("|".join(map(re.escape, names)), self.pieces))
        self.make_words()
        self.guide = guide
        words = self.words
        # The address is taken once: the shipped `fill_next_token_bitmask` asks NumPy
        # for it in each call, at 1 us.
        address, size, write = words.ctypes.data, words.size, guide.write_mask_into
        self.fill = lambda: write(address, size, 4)
        self.from_words()
        self.reset = guide.reset
        self.accept = lambda token: guide.advance(token, False)
        apply_bits = self.kernel
        if apply_bits is None:
            return

        def pick(row):
            write(address, size, 4)
            apply_bits(row, words)
            return row.argmax()

        self.pick, self.apply = pick, lambda row: apply_bits(row, words)


class XGrammar(Bits):
    name = package = "xgrammar"

    def __init__(self, vocabulary):
        import torch
        import xgrammar

        super().__init__(vocabulary)
        torch.set_num_threads(1)
        info = xgrammar.TokenizerInfo(
            [text or b"" for text in vocabulary.texts],
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.n_vocab,
            stop_token_ids=[vocabulary.eos],
        )
        self.compiler = xgrammar.GrammarCompiler(
            info, max_threads=1, cache_enabled=False
        )

    def build(self, names):
        import torch
        import xgrammar

        rules = "root ::= " + " | ".join(map(json.dumps, names))
        matcher = xgrammar.GrammarMatcher(self.compiler.compile_grammar(rules))
        bits = xgrammar.allocate_token_bitmask(1, self.n_vocab)
        self.words, self.matcher = bits[0].numpy(), matcher
        fill_bits, as_tensor = matcher.fill_next_token_bitmask, torch.from_numpy
        apply_bits, n_vocab = xgrammar.apply_token_bitmask_inplace, self.n_vocab

        def apply(row):
            apply_bits(as_tensor(row), bits[0], vocab_size=n_vocab)

        def pick(row):
            fill_bits(bits)
            apply(row)
            return row.argmax()

        self.fill = lambda: fill_bits(bits)
        self.from_words()
        self.reset, self.accept = matcher.reset, matcher.accept_token
        self.pick, self.apply = pick, apply


class LlamaGrammar(Engine):
    """llama.cpp's own sampler: a GBNF grammar over an array of all candidates."""

    name, package = "llama.cpp grammar", "llama-cpp-python"

    def __init__(self, vocabulary):
        import llama_cpp

        super().__init__(vocabulary)
        self.cells = np.zeros(
            self.n_vocab,
            np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")], align=True),
        )
        self.array = llama_cpp.llama_token_data_array(
            data=self.cells.ctypes.data_as(llama_cpp.llama_token_data_p),
            size=self.n_vocab,
            selected=-1,
            sorted=False,
        )
        self.all_ids = np.arange(self.n_vocab, dtype=np.int32)
        self.chain = None

    def build(self, names):
        import llama_cpp

        rules = "root ::= " + " | ".join(map(json.dumps, names))
        sampler = llama_cpp.llama_sampler_init_grammar(
            self.vocabulary.pointer, rules.encode(), b"root"
        )
        if not sampler:
            raise RuntimeError("llama.cpp refuses the grammar")
        chain = llama_cpp.llama_sampler_chain_init(
            llama_cpp.llama_sampler_chain_default_params()
        )
        llama_cpp.llama_sampler_chain_add(chain, sampler)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        self.chain = chain
        run, accept = llama_cpp.llama_sampler_apply, llama_cpp.llama_sampler_accept
        reset = llama_cpp.llama_sampler_reset
        array, cells, all_ids = self.array, self.cells, self.all_ids
        pointer = ctypes.pointer(array)
        ids, logits = cells["id"], cells["logit"]

        def pick(row):
            ids[:] = all_ids
            logits[:] = row
            array.size, array.selected, array.sorted = len(row), -1, False
            run(chain, pointer)
            return ids[array.selected]

        def allowed():
            pick(np.zeros(len(cells), np.float32))
            return np.flatnonzero(logits != MINUS_INF)

        self.reset = lambda: reset(chain)
        self.accept = lambda token: accept(chain, token)
        self.pick, self.allowed = pick, allowed

    def drop(self):
        if self.chain is not None:
            import llama_cpp

            llama_cpp.llama_sampler_free(self.chain)
            self.chain = None


ENGINES: tuple[type[Engine], ...] = (
    Eliza,
    ElizaAny,
    NumPy,
    LLGuidance,
    XGrammar,
    Outlines,
    LlamaGrammar,
)


def installed() -> tuple[list[type[Engine]], list[str]]:
    """Return the engines that can be imported, and a line for each that cannot."""
    modules = {
        "llguidance": "llguidance",
        "xgrammar": "xgrammar",
        "outlines-core": "outlines_core",
        "llama-cpp-python": "llama_cpp",
    }
    found, missing = [], []
    for engine in ENGINES:
        try:
            importlib.import_module(modules.get(engine.package, engine.package))
        except ImportError as error:
            missing.append(f"{engine.name}: not installed ({error})")
        else:
            found.append(engine)
    return found, missing
