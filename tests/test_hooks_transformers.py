"""The hooks for transformers, on a tiny random model."""

import itertools
import math

import numpy as np
import pytest

import eliza
from eliza.errors import (
    InvalidArgument,
    NoCandidateError,
    OffPathError,
    TokenLimit,
)
from eliza.hooks.transformers import logits_processor, prefix_allowed_tokens_fn
from support import END

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

V = 64
LEAVES = {
    "a": [10, 11, 12],
    "b": [10, 11],
    "c": [20, 21],
    "d": [20, 22, 23, 24],
    "e": [30],
}
PAD = 0


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():  # answers that depend on the whole history
        for p in model.parameters():
            p.mul_(6.0)
    return model


@pytest.fixture(scope="module")
def trie():
    return eliza.Trie.from_tokens(LEAVES, n_vocab=V)


def logprobs(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1).numpy()


def greedy(model, trie, prompt):
    """The oracle: a cursor over the logits of the whole history."""
    cursor = trie.cursor(exits=[END])
    ids = list(prompt)
    while not cursor.done:
        token = cursor.argmax(logprobs(model, ids))
        cursor.accept(token)
        ids.append(token)
    return cursor.name


def whole(model, prompt):
    """The log-likelihood of each choice and the end after it."""
    out = {}
    for name, path in LEAVES.items():
        ids, total = list(prompt), 0.0
        for token in [*path, END]:
            total += float(logprobs(model, ids)[token])
            ids.append(token)
        out[name] = total
    return out


def generate(model, prompts, keep=None, **options):
    ids = torch.tensor(prompts)
    if keep is not None:
        options["logits_processor"] = [keep]
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        do_sample=options.pop("do_sample", False),
        **options,
    )


PROMPTS = [[1, 5, 6], [1, 7, 8], [1, 9, 3], [1, 40, 41], [1, 50, 2]]


def test_greedy_batches_equal_the_oracle(model, trie):
    """FC-043; FC-042: one object for many batches of other lengths."""
    keep = logits_processor(trie, eog=model.generation_config)
    seen = set()
    for extra in ([], [33, 34, 35], [44]):
        prompts = [[*p, *extra] for p in PROMPTS]
        out = generate(model, prompts, keep)
        names = keep.finish(out)
        assert names == [greedy(model, trie, p) for p in prompts]
        seen |= set(names)
    assert len(seen) > 1


def test_prefix_allowed_tokens_fn(model, trie):
    fn = prefix_allowed_tokens_fn(trie, eog=[END])
    keep = logits_processor(trie, eog=[END])
    for extra in ([], [33, 34], [44]):
        prompts = [[*p, *extra] for p in PROMPTS]
        out = generate(model, prompts, prefix_allowed_tokens_fn=fn)
        expected = generate(model, prompts, keep)
        assert out.tolist() == expected.tolist()


def test_fc_042_a_chat_that_goes_on(model, trie):
    """One object, turn after turn, without a call to reset."""
    keep = logits_processor(trie, eog=[END])
    fn = prefix_allowed_tokens_fn(trie, eog=[END])
    for start in PROMPTS:
        prompt = start
        for _ in range(3):
            out = generate(model, [prompt], keep)
            assert keep.finish(out) == [greedy(model, trie, prompt)]
            same = generate(model, [prompt], prefix_allowed_tokens_fn=fn)
            assert same.tolist() == out.tolist()
            prompt = [*out[0].tolist(), 40, 41]
            with pytest.raises(InvalidArgument, match="reset"):
                keep.finish(torch.tensor([prompt]))


def test_one_function_for_many_beam_searches(model, trie):
    """With `reset` in between; a row that lost is never the next prompt."""
    fn = prefix_allowed_tokens_fn(trie, eog=[END], beams=True)
    for prompts in (PROMPTS, [[*p, 33] for p in PROMPTS], PROMPTS[:1]):
        fresh = prefix_allowed_tokens_fn(trie, eog=[END], beams=True)
        options = {"num_beams": 5, "length_penalty": 0.0}
        out = generate(model, prompts, prefix_allowed_tokens_fn=fn, **options)
        same = generate(model, prompts, prefix_allowed_tokens_fn=fresh, **options)
        assert out.tolist() == same.tolist()
        fn.reset()


@pytest.mark.parametrize("n_beams", [2, 4, 8])
@pytest.mark.parametrize("form", ["processor", "function"])
def test_beams_equal_the_oracle(model, trie, n_beams, form):
    """With beams for all prefixes the best whole choice comes out."""
    for prompts in (PROMPTS, [[*p, 33] for p in PROMPTS], PROMPTS[:1]):
        options = {"num_beams": n_beams, "length_penalty": 0.0}
        keep = logits_processor(trie, eog=[END], beams=True)
        if form == "processor":
            out = generate(model, prompts, keep, **options)
        else:
            fn = prefix_allowed_tokens_fn(trie, eog=[END], beams=True)
            out = generate(model, prompts, prefix_allowed_tokens_fn=fn, **options)
        for row, prompt in zip(out.tolist(), prompts, strict=True):
            scores = whole(model, prompt)
            path = [t for t in row[len(prompt) :] if t not in (END, PAD)]
            name = next(n for n, p in LEAVES.items() if p == path)
            if n_beams >= 4:  # as many as there are ways to go on
                best = max(scores, key=scores.get)
                assert scores[name] == pytest.approx(scores[best], abs=1e-4)


def test_all_beams_that_come_back_are_choices(model, trie):
    keep = logits_processor(trie, eog=[END], beams=True)
    out = generate(
        model,
        PROMPTS[:2],
        keep,
        num_beams=5,
        num_return_sequences=5,
        length_penalty=0.0,
        early_stopping=True,
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores = out.sequences_scores.tolist()
    for k, prompt in enumerate(PROMPTS[:2]):
        expected = whole(model, prompt)
        for row, score in list(zip(out.sequences.tolist(), scores, strict=True))[
            5 * k : 5 * k + 5
        ]:
            if score <= -1e8:  # what it fills up with
                continue
            path = [t for t in row[3:] if t not in (END, PAD)]
            name = next(n for n, p in LEAVES.items() if p == path)
            assert score == pytest.approx(expected[name], abs=1e-3)


def test_the_answer_may_lie_on_another_device(trie):
    """NumPy cannot read a tensor of CUDA."""

    class Cuda:
        ndim = 2

        def __init__(self, ids):
            self.ids = ids

        def __getitem__(self, at):
            return Cuda(self.ids[at])

        def __array__(self, *_args, **_options):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def __len__(self):
            return len(self.ids)

        def detach(self):
            return self

        def cpu(self):
            return torch.tensor(self.ids)

    keep = logits_processor(trie, eog=[END])
    keep(Cuda([[1], [3]]), torch.zeros(2, V))
    out = Cuda([[1, 30], [3, 30]])
    assert keep.finish(out) == ["e", "e"]
    assert keep.finish(out[0]) == "e"
    fn = prefix_allowed_tokens_fn(trie, eog=[END])
    assert fn(0, Cuda([1])) == [10, 20, 30]


def test_sampling_gives_choices_only(model, trie):
    keep = logits_processor(trie, eog=[END])
    torch.manual_seed(1)
    seen = set()
    for _ in range(20):
        out = generate(model, PROMPTS, keep, do_sample=True, temperature=5.0, top_k=0)
        seen |= set(keep.finish(out))
    assert seen == set(LEAVES)


def test_one_sequence_and_free_text_after_it(model, trie):
    keep = logits_processor(trie, exits=[END], after="free", prompt_length=3)
    out = generate(model, [PROMPTS[0]], keep)
    assert keep.finish(out[0]) == greedy(model, trie, PROMPTS[0])


def test_the_limit_of_tokens_is_noticed(model, trie):
    keep = logits_processor(trie, eog=[END], allow=["d"])
    ids = torch.tensor([PROMPTS[0]])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False,
        logits_processor=[keep],
    )  # fmt: skip
    with pytest.raises(TokenLimit):
        keep.finish(out)


def call(keep, rows, scores):
    return keep(torch.tensor(rows), scores)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_scores_of_any_width(trie, dtype):
    keep = logits_processor(trie, eog=[END])
    scores = (torch.arange(V + 6, dtype=torch.float64) / 7).repeat(2, 1)
    scores = scores.to(getattr(torch, dtype))
    before = scores.clone()
    out = call(keep, [[1], [3]], scores)
    assert out.dtype == scores.dtype
    assert torch.equal(scores, before)  # the caller's array is not changed
    left = torch.isfinite(out).nonzero().tolist()
    assert left == [[r, c] for r, c in itertools.product(range(2), (10, 20, 30))]
    assert torch.equal(out[torch.isfinite(out)], before[torch.isfinite(out)])


def test_fc_019_no_candidate(trie):
    keep = logits_processor(trie, eog=[END])
    scores = torch.zeros(2, V)
    call(keep, [[1], [3]], scores)
    for bad in (-math.inf, math.nan):
        scores = torch.zeros(2, V)
        scores[1, [10, 20, 30]] = bad
        with pytest.raises(NoCandidateError, match="row 1"):
            call(keep, [[1], [3]], scores)
    scores[1, 20] = math.inf
    scores[1, 30] = 4.0
    out = call(keep, [[1], [3]], scores)
    assert out[1, [10, 20, 30]].tolist() == [-math.inf, 0.0, -math.inf]
    out = call(keep, [[1, 10], [3, 20]], torch.zeros(2, V))
    assert [torch.isfinite(r).nonzero().flatten().tolist() for r in out] == [
        [11],
        [21, 22],
    ]


def test_shapes_are_checked(trie):
    keep = logits_processor(trie, eog=[END])
    for rows, scores in (
        ([[1]], torch.zeros(1, V - 1)),
        ([[1]], torch.zeros(2, V)),
        ([[1]], torch.zeros(V)),
    ):
        with pytest.raises(InvalidArgument):
            call(keep, rows, scores)
    call(keep, [[1]], torch.zeros(1, V))
    with pytest.raises(OffPathError):
        call(keep, [[1, 11]], torch.zeros(1, V))
    with pytest.raises(InvalidArgument, match="no list"):
        prefix_allowed_tokens_fn(trie, exits=[END], after="free")


def test_rows_on_any_device_go_by_their_own_ids(trie):
    """Beams that are reordered; FC-045: and rows that are taken out."""
    keep = logits_processor(trie, eog=[END])
    call(keep, [[1], [1], [3]], torch.zeros(3, V))
    call(keep, [[1, 10], [1, 20], [3, 30]], torch.zeros(3, V))
    out = call(keep, [[1, 20, 22], [3, 30, END], [1, 10, 11]], torch.zeros(3, V))
    left = [np.flatnonzero(np.isfinite(r)).tolist() for r in out.numpy()]
    assert left == [[23], [END], [END, 12]]
    out = call(keep, [[1, 20, 22, 23], [1, 10, 11, 12]], torch.zeros(2, V))
    left = [np.flatnonzero(np.isfinite(r)).tolist() for r in out.numpy()]
    assert left == [[24], [END]]
