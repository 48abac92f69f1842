"""Every spelling in the vocabularies of real models, and from a small model."""

from __future__ import annotations

import numpy as np
import pytest

import eliza
from test_real_vocabs import Loaded, files, name_of
from tiny import WORDS, tiny_gguf

llama_cpp = pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.model

CHOICES = ["Pizza", "Pasta", "Burger", " Pizza", "REPLY", "MUTE_ROOM", "MUTE", "naïve"]
CHOICES += ["🐈", "🐈\u200d⬛", "数据", "…", "a\tb\n", '"', '",']
PLACES = [("The answer is", ""), ("The answer is ", ""), ('{"action": "', '",')]
PLACES += [("Say it:\n", "\n"), ("", "")]


@pytest.fixture(scope="module", params=files(), ids=lambda path: path and name_of(path))
def vocab(request):
    from eliza.backends.llama_vocab import LlamaVocab

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    loaded = Loaded(llama_cpp, request.param)
    pointer = llama_cpp.llama_model_get_vocab(loaded.model)
    yield LlamaVocab(pointer, keep_alive=loaded)
    loaded.close()
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), None)


@pytest.fixture(scope="module")
def pieces(vocab):
    ids = range(vocab.n_vocab)
    return [b"" if vocab.is_special(i) else vocab.piece(i) for i in ids]


class Place:
    """All choices where they stand, in both forms."""

    def __init__(self, vocab, prompt, suffix):
        self.vocab = vocab
        if prompt:
            placed = vocab.place(prompt, CHOICES, suffix)
            self.trie, self.root = placed.trie, placed.prompt_ids.tolist()
            self.spellings = vocab.respell(placed, suffix)
        else:
            self.root = []
            self.trie = vocab.trie(CHOICES, suffix=suffix)
            self.spellings = vocab.trie(CHOICES, suffix=suffix, spelling="all")
        self.prompt, self.suffix = prompt, suffix

    def own(self, name):
        """Return the ids that the tokenizer writes after the root."""
        text = self.prompt + name + self.suffix
        ids = self.vocab.encode(text, special=True, bos=bool(self.prompt))
        assert ids[: len(self.root)] == self.root
        return ids[len(self.root) :]

    def text(self, name):
        """Return the bytes from the root on to the end of a choice."""
        own = self.vocab.decode(self.own(name))
        return own.removesuffix(self.suffix.encode())

    def check(self, cursor):
        """Its ids spell the choice, and no more than the suffix after it."""
        written, text = self.vocab.decode(cursor.path), self.text(cursor.name)
        assert text.endswith(cursor.name.encode())
        assert written.startswith(text)
        assert (text + self.suffix.encode()).startswith(written)


@pytest.fixture(params=PLACES, ids=lambda place: repr(place[0]))
def place(request, vocab):
    return Place(vocab, *request.param)


def test_fc005_the_tokenizers_own_ids_lead_to_the_choice(vocab, place):
    assert sorted(place.spellings.names) == sorted(place.trie.names)
    for name in CHOICES:
        cursor = place.spellings.cursor()
        # What tells it from choices that go on is what follows it in place.
        ids = [*place.own(name), *vocab.eog]
        while not cursor.done:
            cursor.accept(ids.pop(0))
        assert cursor.name == name
        place.check(cursor)


def test_letter_by_letter(vocab, pieces, place):
    single = {piece[0]: i for i, piece in enumerate(pieces) if len(piece) == 1}
    for name in CHOICES:
        cursor = place.spellings.cursor()
        text = place.text(name) + place.suffix.encode()
        ids = [*(single[byte] for byte in text), *vocab.eog]
        while not cursor.done:
            cursor.accept(ids.pop(0))
        assert cursor.name == name
        place.check(cursor)


def test_allowed_are_all_ids_that_go_on(pieces, place):
    texts = [place.text(name) + place.suffix.encode() for name in CHOICES]
    rng = np.random.default_rng(len(pieces))
    cursor, so_far = place.spellings.cursor(), b""
    for _ in range(4):
        if cursor.done:
            break
        rests = [t[len(so_far) :] for t in texts if t.startswith(so_far)]
        starts = {rest[:n] for rest in rests for n in range(1, len(rest) + 1)}
        allowed = [i for i in cursor.allowed().tolist() if pieces[i]]  # no exits
        assert allowed == [i for i, piece in enumerate(pieces) if piece in starts]
        token = rng.choice(allowed)
        cursor.accept(token)
        so_far += pieces[token]


def test_whatever_the_logits_say_it_decodes_to_a_choice(place):
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(100):
        cursor = place.spellings.cursor()
        while not cursor.done:
            cursor.accept(rng.choice(cursor.allowed()))
        place.check(cursor)
        seen.add(cursor.name)
    assert len(seen) > len(CHOICES) / 2


# -- a small model ---------------------------------------------------------------------

EXACT = {"kv_type": "f32", "flash_attn": False, "n_threads": 1}


@pytest.fixture(scope="module", params=["bpe", "spm"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf(path, kind=request.param)
    with eliza.load(path, n_ctx=512, backend_options=EXACT) as model:
        yield model


def random_sets(n):
    """Yield prompts, choices that share beginnings or continue others, and suffixes."""
    rng = np.random.default_rng(0)
    words = [word for word in WORDS if word.strip()]
    for _ in range(n):
        stems = rng.choice(words, 3)
        choices = {
            str(stem) + "".join(rng.choice(words, rng.integers(0, 3)))
            for stem in rng.choice(stems, 6)
        }
        prompt = rng.choice(["an action", '{"action": "', "user\n", "say "])
        yield str(prompt), sorted(choices), str(rng.choice(["", '"', '"}', " of"]))


def plain_loop(model, prompt, spellings):
    """Mask each row and take its maximum."""
    with model.open() as session:
        session.prefill(prompt)
        cursor = spellings.cursor()
        while not cursor.done:
            logits = session.timeline.row().copy()
            cursor.mask(logits)
            cursor.accept(int(logits.argmax()))
            if not cursor.done:
                session.prefill(cursor.path[-1:])
    return cursor


def test_greedy_gives_a_choice_and_the_same_one_on_each_way(model):
    otherwise = 0
    for prompt, choices, suffix in random_sets(12):
        placed = model.vocab.place(prompt, choices, suffix)
        spellings = model.vocab.respell(placed, suffix)
        with model.open() as session:
            session.prefill(placed.prompt_ids)
            cursor = spellings.cursor()
            session.set_constraint(cursor)
            steps = list(session)
        assert steps[-1].finish_reason == "choice"
        assert cursor.name in choices
        lead = model.vocab.decode(placed.trie.tokens(0))[: placed.overlap]
        text = lead + cursor.name.encode()
        written = model.vocab.decode(cursor.path)
        assert written.startswith(text)
        assert (text + suffix.encode()).startswith(written)
        assert plain_loop(model, placed.prompt_ids, spellings).path == cursor.path
        answer = model.choose(
            prompt, choices, suffix=suffix, method="greedy", spelling="all"
        )
        assert answer.value == cursor.name
        assert answer.logprob == pytest.approx(sum(s.logprob for s in steps), abs=1e-3)
        own = [placed.trie.tokens(i) for i in range(len(placed.trie))]
        otherwise += not any(cursor.path[: len(ids)] == ids for ids in own)
    assert otherwise  # some were written as the tokenizer would not
