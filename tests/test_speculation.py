"""Drafts change what a generation costs, and nothing else.

Each run is made twice, with a drafter and without, and compared id for id; the text,
the random state and what is counted must agree as well.
"""

import threading
import time

import numpy as np
import pytest

import eliza
from eliza import (
    Closed,
    ContextOverflow,
    InvalidArgument,
    InvalidType,
    Model,
    NoCandidateError,
    NotSupported,
    TokenLimit,
    Trie,
    Vocab,
)
from eliza.reference import Reference
from eliza.speculation import Gate, PromptLookup
from eliza.testing import ScriptedBackend
from support import END, hashed, model_of, plain_vocab
from tiny import WORDS, tiny_gguf

V = 64
PROMPT = [4, 5, 6]
SETS = {"c0": (10, 11, 12), "c1": (10, 20)}


@pytest.fixture
def eager(monkeypatch):
    """Draft as much as may be, whether or not it pays."""
    monkeypatch.setattr(Gate, "length", lambda gate, room: min(gate.most, room))


class Told:
    """A drafter that does what a test wants of it."""

    def __init__(self, propose):
        self.propose = propose
        self.closed = 0

    def close(self):
        self.closed += 1


def ahead(logits, right=0.8, seed=0):
    """Return a drafter that mostly guesses the greedy continuation."""
    rng = np.random.default_rng(seed)

    def propose(history, n):
        out = []
        for _ in range(n):
            token = int(np.argmax(logits((*history, *out))))
            out.append(token if rng.random() < right else int(rng.integers(V)))
        return out

    return Told(propose)


def tied(seed):
    """Return logits with a handful of values only, so that most picks are ties."""
    plain = hashed(seed, V, spread=1.0)
    return lambda history: np.clip(np.round(plain(history)), -1, 1)


def tie_free_of_ends(seed):
    plain = tied(seed)

    def logits(history):
        row = plain(history).copy()
        row[:4] = -3
        return row

    return logits


def outcome(session):
    """Run to the end, or to an error, and return all that must not depend on drafts."""
    text, score, error = "", 0.0, None
    try:
        for step in session:
            text += step.text
            score += step.logprob or 0.0
    except (NoCandidateError, ContextOverflow, TokenLimit) as failure:
        error = type(failure)
    counters = session.counters
    rng = session._generation.sampler.rng.bit_generator.state
    return {
        "ids": session.ids,
        "text": text,
        "output": session.output,
        "history": session.history,
        "finish": session.finish_reason,
        "error": error,
        "score": round(score, 4),
        "generated": counters.generated,
        "forced": counters.forced,
        "rng": rng,
    }


def both(logits, trie=None, drafter=None, mode="greedy", prompt=PROMPT, **options):
    """Return the outcomes without and with drafts, and the counters of the latter."""
    found = []
    options.setdefault("seed", 0)
    backend = {k: options.pop(k) for k in ("n_ctx", "max_rows") if k in options}
    for draft in (None, drafter):
        model = model_of(logits, **backend)
        kind = {} if draft is None else {"draft": draft}
        session = model.open(**(options | kind))
        session.prefill(prompt)
        if trie is not None:
            session.set_token_trie(trie, mode=mode)
        first = outcome(session)
        if trie is not None and first["finish"] == "choice":
            session.clear_token_trie()
            session.max_tokens = len(session.ids) + 8
            first |= {"after": outcome(session)}
        found.append(first)
    return (*found, session.counters)


def random_set(rng):
    alphabet = rng.choice(np.arange(4, V), rng.integers(2, 6), replace=False)
    paths = {
        tuple(int(i) for i in rng.choice(alphabet, rng.integers(1, 7)))
        for _ in range(rng.integers(1, 10))
    }
    return {f"c{i}": path for i, path in enumerate(sorted(paths))}


# -- the cases -----------------------------------------------------------------------


def test_fc055_a_rejected_draft_leaves_no_trace(eager):
    seen = []
    wanted = (*PROMPT, 10, 99, 11)  # what the drafter would write

    def propose(history, n):
        seen.append((tuple(history), cursor.path))
        return wanted[len(history) :][:n] or (7,)

    def logits(history):
        return {20: 5} if history[-1] == 10 else {10: 5}

    vocab = plain_vocab(128)
    model = model_of(logits, vocab)
    session = model.open(draft=Told(propose))
    session.prefill(PROMPT)
    cursor = Trie.from_tokens({**SETS, "c2": (99, 11)}, n_vocab=128).cursor()
    session.set_constraint(cursor)
    steps = list(session)
    assert session.ids == (10, 20)
    assert session.history == (*PROMPT, 10, 20)
    assert cursor.name == "c1"
    assert steps[-1].finish_reason == "choice"
    assert seen == [((*PROMPT, 10), (10,))]  # asking for a draft moved nothing
    assert all(99 not in call.ids for call in model.backend.calls)


def test_fc055_a_draft_on_the_path_that_the_model_does_not_follow(eager):
    cursor = Trie.from_tokens(SETS, n_vocab=V).cursor()
    logits = lambda history: {20: 5, 11: 4, len(history): 1}  # noqa: E731
    model = model_of(logits)
    session = model.open(draft=Told(lambda history, n: [11, 12, 13][:n]))
    session.prefill(PROMPT)
    session.set_constraint(cursor)
    steps = list(session)
    assert (session.ids, cursor.path) == ((10, 20), (10, 20))
    assert sum(step.drafted for step in steps) == 2  # 13 is off the path
    assert sum(step.accepted for step in steps) == 0
    assert session.timeline.sequence.history == (*PROMPT, 10)
    assert session.row().tolist()[:8] == [0.0] * 5 + [1.0, 0.0, 0.0]


def vocabs_that_differ():
    pieces = [f"<{i}>".encode() for i in range(40)]
    swapped = [*pieces[:10][::-1], *pieces[10:]]
    return [
        (32_002, Vocab.from_tokens([b"x"] * 32_002), r"32002 ids and the model 152064"),
        (40, Vocab.from_tokens(swapped), r"id 0 as b'<9>' and the model as b'<0>'"),
        (40, Vocab.from_tokens(pieces, control=[7]), r"id 7|kinds"),
    ]


@pytest.mark.parametrize(("n", "draft", "message"), vocabs_that_differ())
def test_fc057_another_vocabulary_is_refused_when_set_up(n, draft, message):
    big = n == 32_002
    pieces = [b"x"] * 152_064 if big else [f"<{i}>".encode() for i in range(n)]
    target = model_of(hashed(0, 40), Vocab.from_tokens(pieces))
    with pytest.raises(InvalidArgument, match=message):
        target.open(draft=model_of(hashed(0, 40), draft))
    assert target.open().ids == ()


@pytest.mark.parametrize("window", [0, -1])
def test_fc057_windows_that_are_none(window):
    with pytest.raises(InvalidArgument, match=f"draft_max is {window}"):
        model_of(hashed(0, V)).open(draft="lookup", draft_max=window)


@pytest.mark.parametrize("window", [True, 1.5, None, "3"])
def test_fc057_windows_of_another_type(window):
    with pytest.raises(InvalidType, match="draft_max is"):
        model_of(hashed(0, V)).open(draft="lookup", draft_max=window)


def test_fc057_a_draft_model_that_is_missing():
    model, gone = model_of(hashed(0, V)), model_of(hashed(0, V))
    gone.close()
    with pytest.raises(Closed):
        model.open(draft=gone)
    with pytest.raises(InvalidArgument, match="only name is 'lookup'"):
        model.open(draft="model.gguf")
    with pytest.raises(InvalidType, match="draft is a int"):
        model.open(draft=5)


def test_fc057_a_draft_model_without_an_idea(eager):
    """Scores of NaN draft nothing, and the text is the same."""
    nan = model_of(lambda history: np.full(V, np.nan, np.float32))
    plain, drafted, counters = both(hashed(3, V), drafter=nan, max_tokens=30)
    assert plain == drafted
    assert counters.drafted == 0


def test_a_runtime_that_keeps_no_past_refuses_drafts():
    with pytest.raises(NotSupported, match="without draft"):
        model_of(hashed(0, V), truncate=False).open(draft="lookup")


@pytest.mark.parametrize("window", [1, 3, 7])
def test_fc059_ties_go_the_same_way(window, eager):
    rng = np.random.default_rng(window)
    accepted = rejected = 0
    for seed in range(200):
        leaves = random_set(rng)
        logits = tied(seed)
        trie = Trie.from_tokens(leaves, n_vocab=V)
        plain, drafted, counters = both(
            logits, trie, ahead(logits, seed=seed), max_tokens=64, draft_max=window
        )
        assert plain == drafted
        reference = Reference(leaves, exits=[END])
        assert plain["ids"] in reference.name_of
        accepted += counters.accepted
        rejected += counters.drafted - counters.accepted
    assert accepted > 100
    assert rejected > 50


@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.6, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "seed": 1},
        {"repeat_penalty": 1.6, "penalty_last_n": 5},
        {"repeat_penalty": 0.7, "temperature": 1.3, "seed": 2, "logit_bias": {9: 4.0}},
        {"stop": ["<9>", "8><1", "><4>"]},
        {"max_rows": 3},
    ],
)
def test_fc059_drafts_change_nothing_else(options, window, eager):
    rng = np.random.default_rng(5)
    accepted = 0
    for seed in range(12):
        logits = tie_free_of_ends(seed)
        sampled = options.get("temperature") and seed % 2
        for trie in (None, Trie.from_tokens(random_set(rng), n_vocab=V)):
            plain, drafted, counters = both(
                logits,
                trie,
                ahead(logits, seed=seed),
                mode="sample" if sampled else "greedy",
                draft_max=window,
                max_tokens=int(rng.integers(5, 40)),
                **options,
            )
            assert plain == drafted
            accepted += counters.accepted
    assert accepted > 5


# -- what a draft meets --------------------------------------------------------------


def counting(history):
    """Return logits after which ids count upwards, 63 followed by 4."""
    return {4 + (history[-1] - 3) % 60: 5.0}


def upwards(history, n):
    return [4 + (history[-1] - 3 + i) % 60 for i in range(n)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 9])
def test_a_limit_inside_a_draft(limit, eager):
    plain, drafted, counters = both(
        counting, drafter=Told(upwards), draft_max=4, max_tokens=limit
    )
    assert plain == drafted
    assert len(drafted["ids"]) == limit
    assert counters.positions <= len(PROMPT) + limit


@pytest.mark.parametrize("n_ctx", [4, 5, 6, 7, 8, 9, 12])
def test_the_end_of_the_context_inside_a_draft(n_ctx, eager):
    plain, drafted, _ = both(counting, drafter=Told(upwards), draft_max=4, n_ctx=n_ctx)
    assert plain == drafted
    assert drafted["error"] is ContextOverflow
    assert len(drafted["history"]) == n_ctx + 1  # the last one was picked, and waits


def test_a_stop_text_inside_a_draft_that_holds(eager):
    plain, drafted, counters = both(
        counting, drafter=Told(upwards), draft_max=6, stop=["<12>"]
    )
    assert plain == drafted
    assert drafted["text"] == "<7><8><9><10><11>"
    assert drafted["finish"] == "stop"
    assert drafted["ids"][-1] == 12
    assert counters.accepted > 0


def test_nothing_is_drafted_past_an_end(eager):
    def logits(history):
        return {END: 5.0} if history[-1] == 12 else counting(history)

    def propose(history, n):
        return [*range(history[-1] + 1, 13), END, 40, 41][:n]

    model = model_of(logits)
    session = model.open(draft=Told(propose), draft_max=16)
    session.prefill(PROMPT)
    assert outcome(session)["ids"] == tuple(range(7, 13))
    drafts = [call.ids for call in model.backend.calls if call.kind == "decode_many"]
    assert drafts
    assert not any(END in ids or 40 in ids for ids in drafts)


@pytest.mark.parametrize("end", [True, False])
def test_an_end_is_an_exit_in_a_span_and_is_not_drafted(end, eager):
    trie = Trie.from_tokens({"short": (10,), "long": (10, 11, 12)}, n_vocab=V)

    def logits(history):
        return {END: 5.0 if end else 0.0, 11: 1.0}

    model = model_of(logits)
    session = model.open(draft=Told(lambda history, n: [END, 11, 12][:n]))
    session.prefill(PROMPT)
    session.set_token_trie(trie)
    assert outcome(session)["ids"] == ((10,) if end else (10, 11, 12))
    assert session.name == ("short" if end else "long")
    assert session.counters.drafted == 0


@pytest.mark.parametrize(
    ("junk", "error", "message"),
    [
        (None, InvalidType, "proposed None"),
        ("abc", InvalidType, "proposed 'abc'"),
        ([7, "x"], InvalidType, "returns a list of ids"),
        ([7.0], InvalidType, "returns a list of ids"),
        (5, InvalidType, "proposed 5"),
        ([7, V], InvalidArgument, f"id {V}"),
        ([-1], InvalidArgument, "id -1"),
        ([2**40], InvalidArgument, "id 1099511627776"),
    ],
)
def test_junk_from_a_drafter(junk, error, message, eager):
    said = [junk]
    session = model_of(counting).open(draft=Told(lambda history, n: said[0]))
    session.prefill(PROMPT)
    session.next()
    before = session.history, session.ids, session.counters
    for _ in range(2):
        with pytest.raises(error, match=message):
            session.next()
        assert (session.history, session.ids, session.counters) == before
    said[0] = [8, 9]
    assert session.next().ids == (8, 9, 10)


def test_more_than_was_asked_for_and_nothing_at_all(eager):
    for proposed in ([8, 9, 10, 11, 12, 13, 14], [], np.array([8, 9], np.int64), (8,)):
        plain, drafted, _ = both(
            counting,
            drafter=Told(lambda history, n, p=proposed: p),
            draft_max=2,
            max_tokens=9,
        )
        assert plain == drafted


def test_a_drafter_that_raises_changes_nothing(eager):
    class Broken(Exception):
        pass

    def propose(history, n):
        raise Broken

    session = model_of(counting).open(draft=Told(propose))
    session.prefill(PROMPT)
    session.next()
    for _ in range(2):
        with pytest.raises(Broken):
            session.next()
        assert session.ids == (7,)


def test_fc116_a_pick_that_raises_inside_a_draft(eager):
    """What came before in the batch stands, and the exception is not lost."""

    class Broken(Exception):
        pass

    for kind in (Broken, KeyboardInterrupt):
        calls = []

        def pick(row, kind=kind, calls=calls):
            calls.append(1)
            if len(calls) == 3:
                raise kind
            return int(np.argmax(row))

        def logits(history):
            return {11 + len(history) - len(PROMPT): 5.0}

        leaves = {f"{i}{x}": (*range(11, 11 + i), x) for i in range(6) for x in (40,)}
        trie = Trie.from_tokens(leaves | {"up": tuple(range(11, 17))}, n_vocab=V)
        cursor = trie.cursor(exits=[END])
        model = model_of(logits)
        session = model.open(
            draft=Told(lambda history, n: [history[-1] + 1 + i for i in range(n)])
        )
        session.prefill(PROMPT)
        session.set_constraint(cursor, pick)
        with pytest.raises(kind):
            list(session)
        assert session.ids == cursor.path == (11, 12)
        assert session.history == (*PROMPT, 11, 12)
        list(session)
        assert session.ids == tuple(range(11, 17))
        assert cursor.name == "up"


def test_counters_add_up(eager):
    model = model_of(counting)
    session = model.open(draft=Told(upwards), draft_max=4, max_tokens=21)
    session.prefill(PROMPT)
    steps = list(session)
    counters = session.counters
    assert counters.generated == sum(len(step.ids) for step in steps) == 21
    assert counters.drafted == sum(step.drafted for step in steps)
    assert counters.accepted == sum(step.accepted for step in steps)
    assert counters.accepted == counters.drafted  # it is always right
    assert counters.forced == 0
    calls = [c for c in model.backend.calls if c.kind.startswith("decode")]
    assert counters.passes == len(calls) == 1 + 4
    assert counters.positions == sum(len(call.ids) for call in calls)
    session.close()
    assert model.counters == counters


def test_a_drafter_is_whoever_made_it():
    """Sessions may share one; it needs nothing but `propose`."""

    class Shared:
        def propose(self, history, n):
            return upwards(history, n)

    shared = Shared()
    model = model_of(counting)
    for drafter in (shared, shared, Told(upwards)):
        with model.open(draft=drafter, max_tokens=5) as session:
            session.prefill(PROMPT)
            list(session)
    assert drafter.closed == 0


def test_what_a_draft_model_computed_counts_as_its_own(eager):
    small, large = model_of(counting), model_of(counting)
    with large.open(draft=small, max_tokens=12) as session:
        session.prefill(PROMPT)
        list(session)
        assert session.counters.accepted
        assert small.counters.passes == 0
    assert small.counters.passes > 0
    assert small.counters.positions >= small.counters.passes
    assert small.counters.generated == 0
    assert large.counters == session.counters


def test_a_draft_model_that_was_closed_drafts_no_more(eager, caplog):
    small, large = model_of(counting), model_of(counting)
    session = large.open(draft=small, max_tokens=12)
    session.prefill(PROMPT)
    session.next()
    small.close()
    list(session)
    assert session.ids == tuple(range(7, 19))
    assert caplog.text.count("draft model was closed") == 1


def test_a_huge_draft_max_costs_nothing():
    gate = Gate(10**9)
    start = time.perf_counter()
    assert 0 <= gate.length(64) <= 64
    assert gate.length(0) == 0
    assert time.perf_counter() - start < 1


# -- prompt lookup -------------------------------------------------------------------


def look_up(history, n, longest=6, shortest=3):
    for length in range(longest, shortest - 1, -1):
        for at in range(len(history) - length - 1, -1, -1):
            if history[at : at + length] == history[len(history) - length :]:
                out = list(history)
                for i in range(n):
                    out.append(out[at + length + i])
                return out[len(history) :]
    return []


def test_prompt_lookup_is_the_latest_of_the_longest_matches():
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(3000):
        history = rng.integers(0, rng.choice([2, 4, 300]), rng.integers(0, 24)).tolist()
        n = int(rng.integers(1, 9))
        expected = look_up(history, n)
        assert PromptLookup().propose(history, n) == expected
        found += bool(expected)
    assert found > 500


# -- the gate ------------------------------------------------------------------------


def drafting(gate, rounds, chance, cost, rng):
    """Run a gate on text that it guesses so well; return the ids drafted per round."""
    out = []
    for _ in range(rounds):
        n = gate.length(gate.most)
        assert 0 <= n <= gate.most
        if n:
            hits = 0
            while hits < n and rng.random() < chance:
                hits += 1
            gate.note(n, hits, 0.01 * (1 + cost * n))
        else:
            gate.note_plain(0.01)
        out.append(n)
    return np.array(out)


@pytest.mark.parametrize("most", [1, 4, 16])
@pytest.mark.parametrize("cost", [0.02, 0.5, 1.0])
def test_hopeless_text_is_drafted_for_seldom(most, cost):
    gate = Gate(most)
    gate.note_plain(0.01)
    drafted = drafting(gate, 1000, 0.0, cost, np.random.default_rng(0))
    assert drafted.sum() * cost < 40  # passes lost, of a thousand
    assert (drafted[100:] > 0).mean() < 0.05
    assert (drafted > 0)[-200:].any()  # it looks again now and then


@pytest.mark.parametrize("most", [1, 4, 16])
def test_text_that_is_guessed_is_drafted_for_always(most):
    gate = Gate(most)
    gate.note_plain(0.01)
    drafted = drafting(gate, 300, 1.0, 0.1, np.random.default_rng(0))
    assert (drafted[20:] == most).all()


def test_the_better_and_the_cheaper_the_more():
    def mean(chance, cost):
        gate = Gate(16)
        gate.note_plain(0.01)
        return drafting(gate, 2000, chance, cost, np.random.default_rng(3)).mean()

    assert mean(0.9, 0.05) > mean(0.9, 0.3) > mean(0.5, 0.3) > mean(0.1, 0.3)
    assert mean(0.9, 0.05) > mean(0.6, 0.05) > mean(0.2, 0.05)


def test_drafting_that_costs_more_than_it_brings_stops():
    gate = Gate(16)
    gate.note_plain(0.01)
    drafted = drafting(gate, 1000, 0.5, 1.2, np.random.default_rng(0))
    assert (drafted[100:] > 0).mean() < 0.5
    assert drafted[100:].max() == 1


def test_a_gate_comes_back_when_the_text_changes():
    gate = Gate(8)
    gate.note_plain(0.01)
    rng = np.random.default_rng(0)
    drafting(gate, 400, 0.0, 0.1, rng)
    drafted = drafting(gate, 400, 1.0, 0.1, rng)
    assert (drafted[-100:] == 8).all()


# -- a real runtime ------------------------------------------------------------------

EXACT = {"kv_type": "f32", "flash_attn": False, "n_threads": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    pytest.importorskip("llama_cpp")
    folder = tmp_path_factory.mktemp("model")
    made = []
    for name, seed in (("target", 0), ("draft", 1)):
        path = tiny_gguf(folder / f"{name}.gguf", seed=seed)
        made.append(eliza.load(path, n_ctx=1024, backend_options=EXACT))
    yield made
    for model in made:
        model.close()


def tiny_runs(n, seed):
    """Yield prompts that repeat themselves, and sets of words or None."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        words = rng.choice(WORDS, rng.integers(2, 8)).tolist()
        prompt = "".join(words) * int(rng.integers(1, 4))
        stems = rng.choice([w for w in WORDS if w.strip()], 3).tolist()
        names = {"".join(rng.choice(stems, rng.integers(1, 5))) for _ in range(9)}
        yield prompt, (sorted(names) if i % 2 else None)


def generate(model, prompt, names, **drafting):
    session = model.open(max_tokens=64 if names else 24, **drafting)
    session.prefill(prompt)
    if names:
        session.set_token_trie(model.vocab.trie(names))
        list(session)
        assert session.name in names
        session.clear_token_trie()
        session.max_tokens = len(session.ids) + 8
    list(session)
    out = session.history, session.output, session.finish_reason
    counters = session.counters
    session.close()
    return out, counters


def check_runs(models, n, seed):
    target, other = models
    total = np.zeros(6, int)
    for i, (prompt, names) in enumerate(tiny_runs(n, seed)):
        draft = ("lookup", other, target)[i % 3]
        plain, _ = generate(target, prompt, names)
        drafted, counters = generate(
            target, prompt, names, draft=draft, draft_max=int(1 + i % 7)
        )
        assert plain == drafted
        total += np.array(counters)
    assert total[5] > n  # accepted
    assert total[4] > total[5]  # and rejected


def test_greedy_with_drafts_is_greedy_without(models, eager):
    check_runs(models, 500, seed=1)


def test_greedy_with_the_gate_as_it_is(models):
    target, _ = models
    for prompt, names in tiny_runs(30, seed=3):
        plain, _ = generate(target, prompt, names)
        drafted, _ = generate(target, prompt, names, draft="lookup")
        assert plain == drafted


def test_a_cancel_reaches_a_draft_model(eager):
    """The draft model's prefill of a long text is cut short as well."""
    import threading

    pieces = threading.Event()

    def slow(history):
        pieces.set()
        return counting(history)

    draft = Model(ScriptedBackend(plain_vocab(), slow, n_batch=8))
    session = model_of(counting).open(draft=draft)
    session.prefill([4] * 400)
    session.next()
    inner = session._generation.drafter.on_piece
    assert inner is not None
    session.cancel()
    with pytest.raises(eliza.Cancelled):
        inner()


def test_a_busy_draft_model_proposes_nothing():
    """Two models that draft for each other do not wait for each other."""
    small = model_of(hashed(1, 64))
    drafter = small.drafter_for(model_of(hashed(1, 64)).vocab)
    assert drafter.propose([4, 5], 3)
    held, done = threading.Event(), threading.Event()

    def hold():
        with small._lock:
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    assert drafter.propose([4, 5], 3) == []
    done.set()
    thread.join()
    assert drafter.propose([4, 5], 3)


def test_the_gate_compares_passes_alone(monkeypatch):
    """A step whose row was at hand took no time, and says nothing of a pass."""
    noted = []
    monkeypatch.setattr(Gate, "note_plain", lambda self, seconds: noted.append(seconds))
    session = model_of(hashed(2, 64)).open(draft="lookup", max_tokens=4)
    session.prefill([4, 5, 6])
    session.next()
    assert noted == []  # the prompt's row
    session.next()
    assert len(noted) == 1
