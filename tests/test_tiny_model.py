"""`choose` on a small f32 model, where equality can be asked for.

Rounding aside (1e-3), the search, the rankings and plain decoding of each choice by
itself must give the same scores, and the same winner wherever the scores differ.
"""

import math

import numpy as np
import pytest

import eliza
from eliza import Closed
from eliza.reference import Reference, log_sum_exp
from tiny import WORDS, tiny_gguf

pytest.importorskip("llama_cpp")

TOLERANCE = 1e-3
EXACT = {"kv_type": "f32", "flash_attn": False, "n_threads": 1}
PROMPTS = ("an action", '{"action": "', "user\n", "<|im_start|>user\nSEND<|im_end|>\n")


@pytest.fixture(scope="module", params=["bpe", "spm"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf(path, kind=request.param)
    with eliza.load(path, n_ctx=512, backend_options=EXACT) as model:
        yield model


def random_sets(n, seed):
    """Yield prompts and sets of choices that share beginnings and continue others."""
    rng = np.random.default_rng(seed)
    words = [word for word in WORDS if word.strip()]
    for _ in range(n):
        stems = rng.choice(words, rng.integers(1, 4))
        choices = {
            str(stem) + "".join(rng.choice(words, rng.integers(0, 3)))
            for stem in rng.choice(stems, rng.integers(2, 8))
        }
        suffix = str(rng.choice(["", '"', '"}', " of"]))
        yield str(rng.choice(PROMPTS)), sorted(choices), suffix


class Loop:
    """Scores and walks in the plainest way: one sequence, one id after the other."""

    def __init__(self, model, prompt, choices, suffix):
        placed = model.vocab.place(prompt, choices, suffix)
        self.trie = placed.trie
        self.names = placed.trie.names
        self.prompt = placed.prompt_ids.tolist()
        leaves = {name: placed.trie.tokens(i) for i, name in enumerate(self.names)}
        exits = {name: placed.trie.exits(i) for i, name in enumerate(self.names)}
        self.reference = Reference(leaves, leaf_exits=exits)
        self.sequence = model.backend.open()
        self.n_vocab = model.vocab.n_vocab
        self.rows = {}

    def row(self, path):
        if path not in self.rows:
            self.sequence.truncate(0)
            self.sequence.decode([*self.prompt, *path])
            self.rows[path] = self.sequence.logits()[: self.n_vocab].astype(float)
        return self.rows[path].tolist()

    def scores(self, whole):
        return self.reference.scores(self.row, whole)

    def close(self):
        self.sequence.close()


def assert_close(a, b):
    assert a == pytest.approx(b, abs=TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_exact_is_the_whole_ranking_is_each_choice_by_itself(model, seed):
    for prompt, choices, suffix in random_sets(125, seed):
        loop = Loop(model, prompt, choices, suffix)
        alone = loop.scores(whole=True)
        loop.close()
        found = model.choose(prompt, choices, suffix=suffix)
        ranked = model.choose(prompt, choices, suffix=suffix, ranking="whole")
        assert_close({r.value: r.logprob for r in ranked.ranking}, alone)
        assert_close(found.logprob, alone[found.value])
        best, *others = sorted(alone.values(), reverse=True)
        assert found.logprob >= best - TOLERANCE
        if not others or best - others[0] > 2 * TOLERANCE:
            winner = max(alone, key=alone.get)
            assert found.value == ranked.value == winner
        low, high = found.probability_bounds
        share = math.exp(alone[found.value] - log_sum_exp(alone.values()))
        assert low - TOLERANCE <= share <= high + TOLERANCE


@pytest.mark.parametrize("seed", [10, 11])
def test_greedy_and_the_masked_ranking_are_the_plain_walk(model, seed):
    for prompt, choices, suffix in random_sets(60, seed):
        loop = Loop(model, prompt, choices, suffix)
        path = loop.reference.greedy(loop.row)
        masked = loop.scores(whole=False)
        loop.close()
        answer = model.choose(
            prompt, choices, suffix=suffix, method="greedy", ranking="masked"
        )
        assert answer.value == loop.reference.leaf(path)
        assert_close({r.value: r.logprob for r in answer.ranking}, masked)
        assert sum(r.probability for r in answer.ranking) == pytest.approx(1, abs=1e-6)
        assert_close(sum(math.exp(r.logprob) for r in answer.ranking), 1)


def test_a_tree_larger_than_the_context(model):
    rng = np.random.default_rng(5)
    words = [word for word in WORDS if word.strip()]
    choices = sorted({"".join(rng.choice(words, 4)) for _ in range(120)})
    prompt = "user\n" * 100
    answer = model.choose(prompt, choices, suffix='"', ranking="whole")
    assert answer.stats.forward_passes > 2
    loop = Loop(model, prompt, choices, '"')
    alone = loop.scores(whole=True)
    loop.close()
    assert_close({r.value: r.logprob for r in answer.ranking}, alone)
    assert model.choose(prompt, choices, suffix='"').value == answer.value


def test_a_model_without_trees_or_cuts_gives_its_own_scores(tmp_path):
    path = tiny_gguf(tmp_path / "mamba.gguf", arch="mamba")
    with eliza.load(path, n_ctx=512, backend_options=EXACT) as model:
        assert not model.capabilities.tree
        for prompt, choices, suffix in random_sets(10, 3):
            loop = Loop(model, prompt, choices, suffix)
            alone = loop.scores(whole=True)
            loop.close()
            for request in ({}, {"method": "greedy"}):
                answer = model.choose(
                    prompt, choices, suffix=suffix, ranking="whole", **request
                )
                assert_close({r.value: r.logprob for r in answer.ranking}, alone)
            found = model.choose(prompt, choices, suffix=suffix)
            assert_close(found.logprob, max(alone.values()))


def test_fc122_long_prompts_and_small_batches(tmp_path):
    path = tiny_gguf(tmp_path / "tiny.gguf")
    answers = []
    for n_batch in (8, 64, 512):
        options = {**EXACT, "n_batch": n_batch}
        with eliza.load(path, n_ctx=2048, backend_options=options) as model:
            answer = model.choose("user SEND " * 300, ["REPLY", "IGNORE", "NONE"])
            assert answer.stats.prompt_tokens > 600
            answers.append((answer.value, answer.logprob))
    assert len({value for value, _ in answers}) == 1
    assert_close(answers[0][1], answers[2][1])


def test_a_live_llama_is_taken_and_stays_usable(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    path = tiny_gguf(tmp_path / "tiny.gguf")
    llama = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False)
    greedy = {"max_tokens": 4, "temperature": 0}
    with eliza.load(llama) as model:
        first = model.choose("action", ["Yes", "No"], ranking="whole")
        text = llama.create_completion("action", **greedy)["choices"][0]["text"]
        again = model.choose("action", ["Yes", "No"], ranking="whole")
        assert list(first.ranking) == list(again.ranking)
    assert llama.create_completion("action", **greedy)["choices"][0]["text"] == text
    with pytest.raises(Closed):
        model.choose("action", ["Yes"])
    llama.close()


def test_sessions_beside_choose(model):
    session = model.open(max_tokens=5)
    session.prefill("user\n")
    first = session.next()
    model.choose("action", ["Yes", "No"])
    rest = list(session)
    ids = [*first.ids, *(i for step in rest for i in step.ids)]
    session.close()
    alone = model.open(max_tokens=5)
    alone.prefill("user\n")
    assert [i for step in alone for i in step.ids] == ids
    alone.close()
