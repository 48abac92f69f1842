"""Field cases of the session that a table of logits can show; see also test_session."""

import asyncio
import json

import numpy as np
import pytest

import eliza
from eliza import (
    InvalidArgument,
    InvalidType,
    Model,
    NoCandidateError,
    OffPathError,
    TokenLimit,
    Trie,
    Vocab,
)
from eliza.reference import Reference
from eliza.speculation import Gate
from eliza.testing import ScriptedBackend
from plain import PlainSession
from support import END, hashed, model_of, plain_vocab, scripted
from t32 import t32
from tiny import tiny_gguf

V = 64
PROMPT = [1, 5, 6]
PIECES = [b"", b"", b"", b"", *(f"<{i}>".encode() for i in range(4, V))]


@pytest.fixture
def eager(monkeypatch):
    """Draft as much as may be, whether or not it pays."""
    monkeypatch.setattr(Gate, "length", lambda gate, room: min(gate.most, room))


def trie_of(*leaves, n_vocab=V):
    return Trie.from_tokens(
        {f"c{i}": ids for i, ids in enumerate(leaves)}, n_vocab=n_vocab
    )


class Singly:
    """A constraint that never says what is forced: each id is picked."""

    def __init__(self, cursor):
        self.cursor = cursor

    def __getattr__(self, name):
        return getattr(self.cursor, name)

    def forced(self):
        return np.empty(0, np.int32)

    def copy(self):
        return Singly(self.cursor.copy())


class Guess:
    """A drafter that knows the choices, and guesses one of them."""

    def __init__(self, leaves):
        self.leaves = [list(ids) for ids in leaves]

    def propose(self, history, n):
        done = list(history)[len(PROMPT) :]
        for ids in self.leaves:
            if ids[: len(done)] == done and len(ids) > len(done):
                return ids[len(done) :][:n]
        return [7] * n

    def close(self):
        pass


# -- K13: what processors are given --------------------------------------------------


@pytest.mark.parametrize("draft", [False, True])
def test_fc046_the_history_holds_each_id_once(draft, eager):
    """Call k sees the prompt and all ids so far, each exactly once."""
    leaves = [(10, 11, 12), (10, 11, 13), (10, 14), (15,)]
    wanted = {(): 10, (10,): 11, (10, 11): 12}
    seen = []

    def pick(row):
        seen.append(session.history)
        assert session.ids == session.history[3:]
        return wanted[session.ids]

    session = model_of(hashed(1, V)).open(draft=Guess(leaves) if draft else None)
    session.prefill(PROMPT)
    session.set_constraint(trie_of(*leaves).cursor(), pick)
    list(session)
    assert seen == [(1, 5, 6), (1, 5, 6, 10), (1, 5, 6, 10, 11)]
    assert session.history == (1, 5, 6, 10, 11, 12)
    assert session.counters.accepted == (2 if draft else 0)


# -- K14: skipping -------------------------------------------------------------------


def random_sets(n, seed):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        alphabet = rng.choice(np.arange(4, V), rng.integers(2, 5), replace=False)
        paths = {
            tuple(int(i) for i in rng.choice(alphabet, rng.integers(1, 7)))
            for _ in range(rng.integers(1, 9))
        }
        yield {f"c{i}": path for i, path in enumerate(sorted(paths))}


async def streamed(session):
    return [step async for step in session.stream()]


def test_fc054_skipping_and_streaming_change_nothing(eager):
    """Four settings, and drafts beside them: tokens, text, history, finish reason."""
    loop = asyncio.new_event_loop()
    try:
        for seed, leaves in enumerate(random_sets(100, 1)):
            logits = hashed(seed, V)
            plain = PlainSession(logits, PIECES, (END,))
            plain.prefill(PROMPT)
            plain.bind(Reference(leaves, exits=[END]))
            spans = plain.run()
            plain.bind(None)
            plain.max_tokens = len(plain.ids) + 6
            free = plain.run(plain.max_tokens)
            for skip in (True, False):
                for draft in (None, "lookup", Guess(leaves.values())):
                    for stream in (True, False):
                        session = model_of(logits).open(draft=draft)
                        session.prefill(PROMPT)
                        cursor = Trie.from_tokens(leaves, n_vocab=V).cursor(exits=[END])
                        session.set_constraint(cursor if skip else Singly(cursor))
                        texts = []
                        for _ in range(2):
                            steps = (
                                loop.run_until_complete(streamed(session))
                                if stream
                                else list(session)
                            )
                            texts.append("".join(step.text for step in steps))
                            session.clear_constraint()
                            session.max_tokens = plain.max_tokens
                        assert texts == [spans, free]
                        assert list(session.history) == plain.history
                        assert session.finish_reason == plain.finish
                        assert skip or session.counters.forced == 0
    finally:
        loop.close()


@pytest.mark.parametrize("skip", [True, False])
def test_fc050_fc053_the_logits_of_the_last_forced_id_decide(skip):
    leaves = [(30, 31, 32, 33, 15), (30, 31, 32, 33, 16)]
    table = {(): {15: 9}, (30,): {33: 9, 31: 1}, (30, 31, 32, 33): {16: 5, 15: 1}}
    model = model_of(scripted(table, 3))
    session = model.open()
    session.prefill(PROMPT)
    cursor = trie_of(*leaves).cursor()
    session.set_constraint(cursor if skip else Singly(cursor))
    list(session)
    assert session.ids == leaves[1]
    assert session.counters.passes == (2 if skip else 5)
    decoded = [i for call in model.backend.calls for i in call.ids]
    assert decoded == [*PROMPT, 30, 31, 32, 33]  # each once, and not the last


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("limit", range(8))
def test_fc051_limits_with_and_without_skipping(limit, skip):
    cursor = trie_of([30, 31, 32, 33, 34]).cursor()
    session = model_of(scripted({}, 3)).open(max_tokens=limit)
    session.prefill(PROMPT)
    session.set_constraint(cursor if skip else Singly(cursor))
    if limit < 5:
        with pytest.raises(TokenLimit, match=f"max_tokens={limit}"):
            list(session)
        assert session.finish_reason == "length"
        assert cursor.name is None
    else:
        assert list(session)[-1].finish_reason == "choice"
        assert cursor.name == "c0"
    assert session.ids == (30, 31, 32, 33, 34)[:limit]
    if 0 < limit < 5:
        assert session.history == (*PROMPT, *range(30, 30 + limit))


def test_a_step_that_fails_after_a_higher_limit_changes_nothing():
    broken = []

    def logits(history):
        if broken:
            raise broken[0]
        return {9: 1.0}

    session = model_of(logits).open(max_tokens=2)
    session.prefill(PROMPT)
    list(session)
    session.max_tokens = 3
    broken.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        session.next()
    assert (session.ids, session.finish_reason) == ((9, 9), "length")
    broken.clear()
    assert session.next().ids == (9,)


@pytest.mark.parametrize("end", [True, False])
def test_fc051_a_limit_where_only_the_end_is_open(end):
    """The end id is no token of the limit, but nobody asks for it past the limit."""
    logits = scripted({(10,): {END: 5.0 if end else -5.0}}, 3)
    session = model_of(logits).open(max_tokens=1)
    session.prefill(PROMPT)
    session.set_token_trie(trie_of([10], [10, 11]))
    with pytest.raises(TokenLimit):
        list(session)
    assert (session.ids, session.name) == ((10,), None)
    session.max_tokens = 2
    list(session)
    assert session.name == ("c0" if end else "c1")


# -- K16: bias and penalty -----------------------------------------------------------

NINE = {8: -5.0, 9: -4000.0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft", [None, "lookup"])
def test_fc063_bias_and_penalty_do_not_cut_a_choice_short(temperature, draft, eager):
    for bias, wanted in ((-100.0, (8, 8, 8)), (-np.inf, (9,))):
        session = model_of(lambda history: NINE).open(
            repeat_penalty=1.5,
            logit_bias={8: bias},
            temperature=temperature,
            seed=1,
            draft=draft,
        )
        session.prefill(PROMPT)
        session.set_token_trie(trie_of([8, 8, 8], [9]))
        list(session)
        assert session.ids == wanted
        assert session.finish_reason == "choice"


def test_fc063_a_forbidden_id_that_is_needed():
    """Taken by force where nothing else may come; asked for, it is an error."""
    session = model_of(lambda history: NINE).open(logit_bias={8: -np.inf})
    session.prefill(PROMPT)
    session.set_token_trie(trie_of([8, 8, 8]))
    list(session)
    assert session.ids == (8, 8, 8)
    session = model_of(lambda history: NINE).open(logit_bias={8: -np.inf})
    session.prefill(PROMPT)
    session.set_constraint(Singly(trie_of([8, 8, 8]).cursor()))
    for _ in range(2):
        with pytest.raises(NoCandidateError):
            session.next()
        assert session.ids == ()


def test_fc063_a_penalty_is_one_for_either_sign():
    """Repeats become less likely, whatever the sign of their logit."""
    for value in (4.0, -4.0):
        logits = {8: value, 9: value - 0.5}
        session = model_of(
            lambda history, row=logits: {**dict.fromkeys(range(V), -9), **row}
        )
        session = session.open(repeat_penalty=1.5, max_tokens=2)
        session.prefill([5])
        list(session)
        assert session.ids == (8, 9)


def test_the_order_of_bias_penalty_constraint_and_filters():
    """Bias, then penalty, then what is allowed, then top-k among it."""
    row = {8: 2.0, 9: 1.0, 10: 9.0}
    session = model_of(lambda history: row).open(
        logit_bias={9: 1.5}, repeat_penalty=2.0, temperature=1.0, top_k=1, seed=0
    )
    session.prefill([5, 9])
    # 10 is not allowed. 9: (1 + 1.5) / 2 < 2; the other way round 1 / 2 + 1.5.
    session.set_token_trie(trie_of([8, 20], [9, 20]), mode="sample")
    list(session)
    assert session.ids == (8, 20)


# -- K17: ends and stops -------------------------------------------------------------


@pytest.mark.parametrize("end", [2, 3])
@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_fc064_fc067_every_end_id_ends_a_token_trie(end, mode):
    vocab = t32(eog=(2, 3))
    table = {(9,): {end: 90, 4: 1}, (): {9: 90}}
    model = model_of(scripted(table, 3), vocab)
    session = model.open(temperature=1.0, seed=0)
    session.prefill(PROMPT)
    session.set_token_trie(trie_of([9], [9, 4], [12], n_vocab=32), mode=mode)
    steps = list(session)
    assert session.name == "c0"
    assert "".join(step.text for step in steps) == "Yes" == session.output.decode()
    assert session.ids == (9,)  # the end is not counted
    assert session.counters.generated == 1
    assert len(session.history) == 4


@pytest.mark.parametrize("end", [2, 3])
def test_fc067_free_text_that_an_end_id_ends(end):
    table = {(): {9: 9}, (9,): {end: 9}}
    session = model_of(scripted(table, 3), t32(eog=(2, 3))).open(max_tokens=9)
    session.prefill(PROMPT)
    steps = list(session)
    assert ("".join(s.text for s in steps), session.ids) == ("Yes", (9,))
    assert steps[-1].finish_reason == "stop"
    assert session.next().final


def test_fc064_a_leaf_ends_without_a_model_call():
    model = model_of(scripted({(): {12: 9}}, 3), t32())
    session = model.open()
    session.prefill(PROMPT)
    session.set_token_trie(trie_of([9], [12], n_vocab=32))
    list(session)
    assert session.counters.passes == 1


def test_fc069_a_model_that_never_ends():
    """Spans end all the same; free text ends by its limit."""
    leaves = [(10, 11), (12, 13, 14, 15, 16, 17, 18), (20,)]
    session = model_of(lambda history: {END: -50.0, 3: -50.0}).open(temperature=1.0)
    session.prefill(PROMPT)
    for _ in range(3):
        session.set_token_trie(trie_of(*leaves), mode="sample")
        list(session)
        assert session.name is not None
    assert len(session.ids) <= 3 * 7
    session.clear_token_trie()
    session.max_tokens = len(session.ids) + 50
    list(session)
    assert session.finish_reason == "length"


@pytest.mark.parametrize("stop", [["nan"], ["a"], ["banana"], ["n", "chan"]])
def test_fc070_a_stop_text_inside_a_choice(stop):
    letters = {c: 4 + i for i, c in enumerate("abcehnry")}
    vocab = Vocab.from_tokens([b"", b"", b"</s>", b"", *letters], control=[2], eog=[2])
    spell = lambda word: [letters[c] for c in word]  # noqa: E731
    trie = Trie.from_tokens(
        {word: spell(word) for word in ("banana", "cherry")}, n_vocab=vocab.n_vocab
    )
    session = model_of(lambda history: {letters["b"]: 1.0}, vocab).open(stop=stop)
    session.prefill([5])
    session.set_token_trie(trie)
    steps = list(session)
    assert "".join(step.text for step in steps) == "banana" == session.name


def test_fc070_text_held_for_a_stop_text_is_not_lost_when_a_span_begins():
    table = {(): {20: 9}, (20,): {21: 9}}
    session = model_of(scripted(table, 3)).open(stop=["<21>!"])
    session.prefill(PROMPT)
    texts = [session.next().text, session.next().text]
    assert texts == ["<20>", ""]  # "<21>" may be the beginning of the stop text
    session.set_token_trie(trie_of([10, 11]))
    texts += [step.text for step in session]
    assert "".join(texts) == "<20><21><10><11>"


# -- K28: callbacks ------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, MemoryError, TypeError]
)
@pytest.mark.parametrize("step", [1, 3])
def test_fc116_an_exception_in_a_pick_reaches_the_caller(kind, step):
    raised, calls = kind("mine"), []
    leaves = [(10, 11, 12), (10, 11, 13), (10, 14), (15,)]

    def pick(row):
        calls.append(1)
        if len(calls) == step:
            raise raised
        return int(session_cursor.allowed()[0])

    session_cursor = trie_of(*leaves).cursor()
    session = model_of(hashed(1, V)).open()
    session.prefill(PROMPT)
    session.set_constraint(session_cursor, pick)
    with pytest.raises(kind) as caught:
        list(session)
    assert caught.value is raised
    assert session.ids == session_cursor.path == (10, 11, 12)[: step - 1]
    list(session)
    assert session.ids == (10, 11, 12)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, InvalidType),
        ("10", InvalidType),
        (10.0, InvalidType),
        ([10], InvalidType),
        (np.array([10, 15]), InvalidType),
        (11, OffPathError),
        (-1, OffPathError),
        (V, OffPathError),
        (2**40, OffPathError),
    ],
)
def test_fc116_a_pick_that_returns_something_else(given, error):
    said = [given]
    cursor = trie_of([10, 11], [15]).cursor()
    session = model_of(hashed(1, V)).open()
    session.prefill(PROMPT)
    session.set_constraint(cursor, lambda row: said[0])
    for _ in range(2):
        with pytest.raises(error, match="pick returned"):
            session.next()
        assert (session.ids, cursor.depth) == ((), 0)
    said[0] = np.int64(10)
    list(session)
    assert session.ids == (10, 11)


# -- K29: the constraint is never ignored --------------------------------------------

UNLIKELY = (40, 41, 42, 43)


def never(history):
    """Return logits that want anything but the choice."""
    return {**dict.fromkeys(UNLIKELY, -30.0), 9: 30.0, END: 29.0}


def bind(session, mode):
    data = {"modelId": "", "descriptors": []}
    leaf = {"name": "unlikely", "tokens": list(UNLIKELY)}
    data["descriptors"].append({"path": "p", "leaves": [leaf]})
    session.set_token_trie(json.dumps(data), mode=mode, check_model=False)


@pytest.mark.parametrize("mode", ["greedy", "sample"])
@pytest.mark.parametrize("draft", [None, "lookup", "model"])
@pytest.mark.parametrize("how", ["list", "stream", "restored", "synced", "reset"])
def test_fc118_always_the_choice(mode, draft, how, eager, tmp_path):
    model = model_of(never)
    draft = model_of(never) if draft == "model" else draft
    session = model.open(
        temperature=1.0, top_k=2, stop=["<40>", "<4"], repeat_penalty=3.0, draft=draft
    )
    session.prefill([*PROMPT, 9, 9, 9, 9])
    bind(session, mode)
    if how == "restored":
        session.save_slot(tmp_path / "slot")
        session = model.open(temperature=1.0, draft=draft)
        bind(session, mode)
        session.restore_slot(tmp_path / "slot")
    elif how == "synced":
        session.sync([*PROMPT, 9, 9])
    elif how == "reset":
        session.next()
        session.reset()
        session.prefill(PROMPT)
    steps = asyncio.run(streamed(session)) if how == "stream" else list(session)
    assert session.ids == UNLIKELY
    assert session.name == "unlikely"
    assert "".join(step.text for step in steps) == "<40><41><42><43>"
    assert steps[-1].finish_reason == "choice"


def test_fc118_nothing_turns_a_bad_constraint_into_free_text():
    session = model_of(never).open()
    session.prefill(PROMPT)
    bind(session, "greedy")
    for bad in (b"{}", "", None, {"a": [1]}, trie_of([1], n_vocab=65)):
        with pytest.raises((InvalidArgument, InvalidType)):
            session.set_token_trie(bad)
    with pytest.raises(InvalidArgument, match="mode is 'free'"):
        session.set_token_trie(trie_of([10]), mode="free")
    list(session)
    assert session.ids == UNLIKELY


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory):
    pytest.importorskip("llama_cpp")
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def tiny(path, **options):
    exact = {"kv_type": "f32", "flash_attn": False, "n_threads": 1}
    return eliza.load(path, backend_options=exact | options)


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_fc118_a_real_runtime(tiny_path, mode, tmp_path):
    with tiny(tiny_path, n_ctx=512) as model:
        trie = model.vocab.trie(["MUTEROOM the", "FILES false"])
        for draft in (None, "lookup", model):
            with model.open(temperature=2.0, draft=draft) as session:
                session.prefill("Yes Yes Yes Yes")
                session.set_token_trie(trie, mode=mode)
                session.save_slot(tmp_path / "slot")
                asyncio.run(streamed(session))
                assert session.output.decode() == session.name in trie.names
                session.restore_slot(tmp_path / "slot")
                list(session)
                assert session.output.decode() == session.name in trie.names


# -- K31: batches --------------------------------------------------------------------


def long_run(session, n):
    """Prefill n ids, follow a run of 600, and go on; return all that came of it."""
    n_vocab = session.vocab.n_vocab
    rng = np.random.default_rng(n)
    session.prefill(rng.integers(4, n_vocab, n).tolist())
    run = rng.integers(4, n_vocab, 600).tolist()
    trie = Trie.from_tokens({"a": [*run, 5], "b": [*run, 6]}, n_vocab=n_vocab)
    session.set_token_trie(trie)
    steps = list(session)
    assert steps[0].ids[:600] == tuple(run)
    name = session.name
    session.clear_token_trie()
    session.max_tokens = len(session.ids) + 5
    list(session)
    return name, session.history, session.counters.passes


@pytest.mark.parametrize("n", [513, 600, 5000])
def test_fc122_batches_of_any_size(n, eager):
    found = []
    for n_batch in (512, 8, 10_000):
        backend = ScriptedBackend(
            plain_vocab(), hashed(2, V), n_ctx=8192, n_batch=n_batch
        )
        for draft in (None, "lookup"):
            found.append(long_run(Model(backend).open(draft=draft), n)[:2])
    assert all(one == found[0] for one in found)
    assert len(found[0][1]) > n + 600


@pytest.mark.parametrize("n", [513, 5000])
def test_fc122_a_real_runtime(n, tiny_path):
    found = []
    for n_batch in (512, 8):
        with tiny(tiny_path, n_ctx=8192, n_batch=n_batch) as model, model.open() as s:
            found.append(long_run(s, n))
    assert found[0] == found[1]


# -- K32: long texts -----------------------------------------------------------------


@pytest.mark.parametrize("n", [64, 65, 128])
def test_fc124_long_pieces_come_back_whole(n):
    vocab = t32()
    text = " " * n + "A"
    ids = vocab.encode(text)
    for bound in (True, False):
        table = {tuple(ids[:i]): {token: 9.0} for i, token in enumerate(ids)}
        session = model_of(scripted(table, 1), vocab).open(max_tokens=len(ids))
        session.prefill([5])
        if bound:
            session.set_token_trie(trie_of(ids, [9], n_vocab=32))
        steps = list(session)
        assert "".join(step.text for step in steps) == text == session.output.decode()


def test_fc124_a_piece_of_256_bytes_and_one_of_none():
    pieces = [b"", b"x" * 256, "é".encode() * 128, b"y"]
    vocab = Vocab.from_tokens(pieces)
    table = {(): {1: 9}, (1,): {0: 9}, (1, 0): {2: 9}, (1, 0, 2): {3: 9}}
    session = model_of(scripted(table, 1), vocab).open(max_tokens=4, stop=["z" * 300])
    session.prefill([3])
    steps = list(session)
    assert "".join(step.text for step in steps) == "x" * 256 + "é" * 128 + "y"
    assert session.ids == (1, 0, 2, 3)
