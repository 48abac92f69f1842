"""llama-cpp-python's completions where something goes wrong, or comes in between."""

import numpy as np
import pytest

import eliza
from eliza.errors import BackendError, InvalidArgument, NoCandidateError
from eliza.hooks import llama_cpp_python as hook
from eliza.hooks.llama import Link, chain, end_ids
from eliza.hooks.llama_cpp_python import (
    create_chat_completion,
    create_completion,
    logits_processor,
    sampling_with,
)
from tiny import tiny_gguf

llama_cpp = pytest.importorskip("llama_cpp")

PROMPT = "user: "
CHOICES = ["REPLY", "IGNORE", "SEND_EMAIL", "SEND_MESSAGE", "SEARCH_WEB", "NONE"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
    llama = llama_cpp.Llama(str(path), n_ctx=512, n_threads=1, verbose=False)
    yield llama
    llama.close()


@pytest.fixture(scope="module")
def place(llama):
    with eliza.load(llama, n_ctx=512, n_threads=1) as model:
        yield model.vocab.place(PROMPT, CHOICES)


def text_of(completion):
    return completion["choices"][0]["text"]


def test_a_suspended_stream_leaves_the_model_to_others(llama, place):
    """A plain call in between is not constrained; the stream does not go on."""
    ids = list(place.prompt_ids)
    whole = text_of(create_completion(llama, ids, place.trie))
    options = {"max_tokens": 6, "temperature": 0}
    plain = llama.create_completion("Tell a story", **options)
    chat = [{"role": "user", "content": "mute the room"}]
    for begin in (
        lambda: create_completion(llama, ids, place.trie, stream=True),
        lambda: create_chat_completion(llama, chat, place.trie, stream=True),
    ):
        parts = begin()
        next(parts)
        assert "_init_sampler" not in llama.__dict__
        again = llama.create_completion("Tell a story", **options)
        assert text_of(again) == text_of(plain)
        with pytest.raises(BackendError, match="another completion"):
            next(parts)
        # The sampler of the other is not taken away; nor is ours by a stream.
        first, second = begin(), create_completion(llama, ids, place.trie, stream=True)
        next(first)
        assert "".join(text_of(part) for part in second) == whole
        with pytest.raises(BackendError, match="another completion"):
            list(first)
    with sampling_with(llama, chain(Link(place.trie, eog=llama))) as sampler:
        before = llama._init_sampler
        parts = create_completion(llama, ids, place.trie, stream=True)
        assert "".join(text_of(part) for part in parts) == whole
        assert llama._init_sampler == before
        assert text_of(llama.create_completion(ids, max_tokens=24)) == whole
        assert sampler.link.done
    assert "_init_sampler" not in llama.__dict__
    sampler.close()


def test_after_an_error_nothing_but_the_end(llama, place):
    """Also with free text: with every logit at -inf any token would be taken."""
    exits = end_ids(llama) if place.trie.needs_exits else None
    with pytest.raises(InvalidArgument, match="eog= is needed"):
        logits_processor(place.trie, exits=exits, after="free")
    keep = logits_processor(place.trie, eog=llama, after="free")

    def spoilt(history, logits):
        logits[:] = np.nan
        return keep(history, logits)

    out = llama.create_completion(
        list(place.prompt_ids), max_tokens=24, temperature=0,
        logits_processor=llama_cpp.LogitsProcessorList([spoilt]),
    )  # fmt: skip
    assert (text_of(out), out["choices"][0]["finish_reason"]) == ("", "stop")
    with pytest.raises(NoCandidateError):
        keep.check()
    short = np.zeros(4, np.float32)
    far = logits_processor(eliza.Trie.from_tokens({"a": [5]}, n_vocab=9), eog=[2, 7])
    assert np.isneginf(np.delete(far([1], short), 2)).all()
    assert short[2] == 0


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, MemoryError]
)
def test_fc_116_the_same_exception_reaches_the_caller(
    llama, place, monkeypatch, kind, step
):
    """No token comes after it; llama-cpp-python would print it and go on."""
    ids, error = list(place.prompt_ids), kind("no")
    whole = text_of(create_completion(llama, ids, place.trie))
    keep = logits_processor(place.trie, eog=llama)
    seen = []
    mask_row = hook.mask_row

    def fails(there, row):
        if len(seen) == step:
            raise error
        mask_row(there, row)

    def record(history, logits):
        seen.append(history.tolist())
        return keep(history, logits)

    def complete(*criteria):
        seen.clear()
        return llama.create_completion(
            ids,
            max_tokens=24,
            temperature=0,
            logits_processor=llama_cpp.LogitsProcessorList([record]),
            stopping_criteria=llama_cpp.StoppingCriteriaList(criteria),
        )

    with monkeypatch.context() as patch:
        patch.setattr(hook, "mask_row", fails)
        with pytest.raises(kind) as raised:
            complete(keep.stop)
        assert raised.value is error
        assert len(seen) == step
        keep.reset()
        out = complete()
        assert len(seen) == step  # the end, and nothing behind
        assert out["choices"][0]["finish_reason"] == "stop"
        assert whole.startswith(text_of(out))
        assert len(text_of(out)) < len(whole)
        with pytest.raises(kind) as raised:
            keep.check()
        assert raised.value is error
    assert text_of(complete(keep.stop)) == whole
    keep.check()
    assert len(seen) > step
