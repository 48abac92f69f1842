"""Sessions from several threads: queued, cancelled, closed, dropped half-way."""

import asyncio
import gc
import threading
import time
import weakref

import numpy as np
import pytest

import eliza
from eliza import (
    Cancelled,
    Closed,
    InvalidArgument,
    Model,
    Trie,
)
from eliza.testing import ScriptedBackend
from support import END, hashed, model_of, on_linux, plain_vocab, resident
from tiny import tiny_gguf

V = 64
PROMPT = [4, 5, 6]


def trie_of(*leaves):
    return Trie.from_tokens({f"c{i}": ids for i, ids in enumerate(leaves)}, n_vocab=V)


def in_threads(n, work, limit=60):
    """Run work(i) in n threads; raise what any of them raised."""
    failed = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failed:
        raise failed[0]


class Slow:
    """A scripted model whose pieces take a while, and that says where it is."""

    def __init__(self, seconds=0.02, n_batch=8, logits=None):
        self.seconds = seconds
        self.started = threading.Event()
        self.pieces = 0
        self.row = logits or (lambda history: {4 + len(history) % 50: 5.0})
        backend = ScriptedBackend(plain_vocab(), self.row, n_batch=n_batch)
        slow, opened = self, backend.open

        def open_slow():
            sequence = opened()
            pause = sequence._pause

            def paused():
                pause()
                slow.pieces += 1
                slow.started.set()
                time.sleep(slow.seconds)

            sequence._pause = paused
            return sequence

        backend.open = open_slow
        self.backend = backend
        self.model = Model(backend)


class Running:
    """Work in a thread, what it raised, and how long it went on."""

    def __init__(self, work):
        self.error = self.result = None
        self.begun = threading.Event()

        def run():
            self.begun.set()
            try:
                self.result = work()
            except BaseException as error:
                self.error = error
            self.ended = time.monotonic()

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def join(self, limit=20):
        self.thread.join(limit)
        assert not self.thread.is_alive(), "it hangs"


# -- FC-080, FC-082: two threads, one model ------------------------------------------


def sets_for(i):
    return {"a": (10 + i, 20, 21), "b": (10 + i, 20), "c": (30 + i,), "d": (40, 11 + i)}


def alone(logits, i):
    cursor = Trie.from_tokens(sets_for(i), n_vocab=V).cursor(exits=[END])
    history = list(PROMPT)
    while not cursor.done:
        token = cursor.argmax(np.asarray(logits(tuple(history)), np.float32))
        cursor.accept(token)
        history.append(token)
    return cursor.name


def test_fc080_eight_sessions_of_one_model():
    logits = hashed(1, V)
    model = model_of(logits)  # it raises when two calls overlap: FC-082
    expected = [alone(logits, i) for i in range(8)]

    def work(i):
        session = model.open()
        trie = Trie.from_tokens(sets_for(i), n_vocab=V)
        for _ in range(200):
            session.sync(PROMPT)
            session.set_token_trie(trie)
            list(session)
            assert session.name == expected[i]

    in_threads(8, work)


def test_fc080_eight_threads_on_one_session():
    """Calls queue: each is whole, and the history is some order of them."""
    plain_logits = hashed(2, V)

    def logits(history):
        return [-9.0, -9.0, -9.0, -9.0, *plain_logits(history)[4:]]  # without ends

    session = model_of(logits).open()
    session.prefill(PROMPT)
    steps, lock = [], threading.Lock()

    def work(i):
        for _ in range(200):
            step = session.next()
            with lock:
                steps.extend(step.ids)

    in_threads(8, work)
    assert len(steps) == 1600
    assert sorted(steps) == sorted(session.ids)
    plain = model_of(logits).open()
    plain.prefill(PROMPT)
    while len(plain.ids) < len(session.ids):
        plain.next()
    assert plain.ids == session.ids


def test_fc080_whole_runs_on_one_session_behind_a_lock():
    logits = hashed(3, V)
    session = model_of(logits).open()
    lock = threading.Lock()
    expected = [alone(logits, i) for i in range(8)]
    tries = [Trie.from_tokens(sets_for(i), n_vocab=V) for i in range(8)]

    def work(i):
        for _ in range(200):
            with lock:
                session.reset()
                session.prefill(PROMPT)
                session.set_token_trie(tries[i])
                list(session)
                assert session.name == expected[i]

    in_threads(8, work)


def test_fc082_choose_and_sessions_queue():
    model = model_of(hashed(4, V))
    wanted = model.choose(PROMPT, [("a", [10]), ("b", [20, 21])]).value

    def work(i):
        session = model.open(draft="lookup")
        for _ in range(50):
            if i % 2:
                assert model.choose(PROMPT, [("a", [10]), ("b", [20, 21])]).value == (
                    wanted
                )
            else:
                session.reset()
                session.prefill(PROMPT)
                session.next()

    in_threads(6, work)


# -- FC-083: cancel ------------------------------------------------------------------


def test_fc083_a_long_prefill():
    slow = Slow(seconds=0.05, n_batch=8)
    session = slow.model.open()
    session.prefill(PROMPT)
    running = Running(lambda: session.prefill([4] * 320))  # 40 pieces of 50 ms
    time.sleep(0.12)
    before, cancelled = slow.pieces, time.monotonic()
    session.cancel()
    session.cancel()
    running.join()
    assert isinstance(running.error, Cancelled)
    assert slow.pieces <= before + 1
    assert running.ended - cancelled < 1
    assert session.history == tuple(PROMPT)
    for verb in (session.next, lambda: session.prefill([4]), session.row):
        with pytest.raises(Cancelled):
            verb()
    assert session.reset_keep(2) == 2
    slow.seconds = 0
    session.prefill([9])
    assert session.next().ids == (7,)
    assert session.history == (4, 5, 9, 7)


def test_fc083_a_step_that_is_being_computed():
    """Its id is not taken: nobody would be told of it."""
    slow = Slow(seconds=0.3)
    session = slow.model.open()
    slow.seconds, _ = 0, session.prefill(PROMPT)
    first = session.next().ids
    slow.seconds = 0.3
    slow.started.clear()
    running = Running(session.next)
    slow.started.wait(5)
    session.cancel()
    running.join()
    assert isinstance(running.error, Cancelled)
    assert session.ids == first
    session.reset_keep(99)
    slow.seconds = 0
    assert session.history == (*PROMPT, *first)
    assert session.next().ids == (4 + len(PROMPT) + 1,)


def test_fc083_a_forced_run():
    """A run of 300 ids in pieces of 8 is cut short like a prompt."""
    slow = Slow(seconds=0.01, n_batch=8)
    session = slow.model.open()
    session.prefill(PROMPT)
    run = [10 + i % 40 for i in range(300)]
    session.set_token_trie(trie_of([*run, 60], [*run, 61, 62]))
    assert session.next().ids == tuple(run)
    slow.started.clear()
    running = Running(session.next)
    slow.started.wait(5)
    session.cancel()
    running.join()
    assert isinstance(running.error, Cancelled)
    assert slow.pieces < 20
    assert session.ids == tuple(run)
    assert session.name is None
    session.reset_keep(3)
    slow.seconds = 0
    list(session)
    assert session.name in ("c0", "c1")


def test_fc083_before_between_and_after_the_end():
    session = model_of(lambda history: {9: 5.0}).open(max_tokens=3)
    session.cancel()  # before the start: it holds until reset
    for _ in range(2):
        with pytest.raises(Cancelled, match="reset"):
            session.prefill(PROMPT)
    session.reset()
    session.prefill(PROMPT)
    assert session.next().ids == (9,)
    session.cancel()
    for _ in range(2):
        with pytest.raises(Cancelled):
            session.next()
    assert (session.ids, session.finish_reason) == ((9,), None)
    session.reset_keep(3)
    list(session)
    assert session.finish_reason == "length"
    session.cancel()  # after the end: nothing that was is lost
    assert (session.ids, session.finish_reason) == ((9, 9, 9), "length")
    with pytest.raises(Cancelled):
        session.next()
    session.reset()
    assert session.history == ()


def test_a_cancel_is_seen_although_a_reset_follows_at_once():
    for _ in range(20):
        slow = Slow(seconds=0.005)
        session = slow.model.open()
        session.prefill(PROMPT)
        slow.started.clear()
        running = Running(lambda s=session: s.prefill([4] * 400))
        slow.started.wait(5)
        session.cancel()
        session.reset()
        running.join()
        assert isinstance(running.error, Cancelled)
        assert session.history == ()


def test_a_cancel_during_a_restore_is_not_lost(tmp_path):
    session = model_of(hashed(1, V)).open()
    session.prefill(PROMPT)
    session.save_slot(tmp_path / "slot")
    sequence = session.timeline.sequence
    restore = sequence.restore

    def slow_restore(state, n):
        session.cancel()
        restore(state, n)

    sequence.restore = slow_restore
    session.restore_slot(tmp_path / "slot")
    with pytest.raises(Cancelled):
        session.next()


def test_cancelling_one_session_leaves_the_other():
    slow = Slow(seconds=0.01)
    one, other = slow.model.open(), slow.model.open()
    other.prefill(PROMPT)
    running = Running(lambda: one.prefill([4] * 400))
    running.begun.wait(5)
    time.sleep(0.03)
    one.cancel()
    assert other.next().ids
    running.join()
    assert isinstance(running.error, Cancelled)


# -- FC-085: close under a running thread --------------------------------------------

ORDERS = [
    ("session", "model", "backend"),
    ("session", "backend", "model"),
    ("model", "session", "backend"),
    ("model", "backend", "session"),
    ("backend", "session", "model"),
    ("backend", "model", "session"),
]


def close_in_order(order, session, model):
    parts = {"session": session, "model": model, "backend": model.backend}
    for name in order:
        parts[name].close()


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_fc085_close_while_another_thread_generates(order):
    for work in (
        lambda session: [session.next() for _ in range(200)],
        lambda session: session.prefill([4] * 1600),
    ):
        slow = Slow(seconds=0.02)
        session = slow.model.open()
        session.prefill(PROMPT)
        slow.started.clear()
        running = Running(lambda work=work, session=session: work(session))
        slow.started.wait(5)
        begun = time.monotonic()
        close_in_order(order, session, slow.model)
        assert time.monotonic() - begun < 2
        running.join()
        assert isinstance(running.error, (Cancelled, Closed))
        for _ in range(2):
            with pytest.raises(Closed):
                session.next()
        close_in_order(order[::-1], session, slow.model)


def test_fc085_one_step_of_two_seconds():
    slow = Slow(seconds=0)
    session = slow.model.open()
    session.prefill(PROMPT)
    session.next()
    slow.seconds = 2
    slow.started.clear()
    running = Running(session.next)
    slow.started.wait(5)
    begun = time.monotonic()
    session.close()
    slow.model.close()
    assert time.monotonic() - begun < 2.5
    running.join()
    assert isinstance(running.error, (Cancelled, Closed))


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory):
    pytest.importorskip("llama_cpp")
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_fc085_a_real_runtime(order, tiny_path):
    model = eliza.load(tiny_path, n_ctx=2048, n_threads=1)
    session = model.open(temperature=1.0, seed=1)
    begun = threading.Event()

    def work():
        while True:
            session.reset()
            session.prefill("the user" * 40)
            for _ in range(30):
                begun.set()
                session.next()

    running = Running(work)
    begun.wait(10)
    close_in_order(order, session, model)
    running.join()
    assert isinstance(running.error, (Cancelled, Closed))
    with pytest.raises(Closed):
        session.next()


# -- FC-086: streams that are dropped ------------------------------------------------


class Consumer(Exception):
    pass


def take_one_and_break(session):
    for _ in session:
        break


def take_one_and_raise(session):
    try:
        for _ in session:
            raise Consumer
    except Consumer:
        pass


def take_one_and_collect(session):
    iterator = iter(session)
    next(iterator)
    del iterator
    gc.collect(0)


def take_one_and_close(session):
    iterator = iter(session)
    next(iterator)
    iterator.close()


def take_one_in_a_thread(session):
    thread = threading.Thread(target=take_one_and_break, args=(session,))
    thread.start()
    thread.join(20)


async def astream_break(session):
    async for _ in session.stream():
        break


async def astream_aclose(session):
    stream = session.stream()
    await anext(stream)
    await stream.aclose()


async def astream_raise(session):
    try:
        async for _ in session.stream():
            raise Consumer
    except Consumer:
        pass


@pytest.mark.parametrize(
    "drop",
    [
        take_one_and_break,
        take_one_and_raise,
        take_one_and_collect,
        take_one_and_close,
        take_one_in_a_thread,
        lambda session: asyncio.run(astream_break(session)),
        lambda session: asyncio.run(astream_aclose(session)),
        lambda session: asyncio.run(astream_raise(session)),
    ],
)
def test_fc086_a_dropped_stream_computes_nothing_more(drop):
    logits = hashed(8, V)
    model = model_of(logits)
    session = model.open()
    session.prefill(PROMPT)
    session.next()
    drop(session)
    calls = len(model.backend.calls)
    taken = session.ids
    time.sleep(0.02)
    assert len(model.backend.calls) == calls  # nothing goes on behind the scenes
    session.max_tokens = 12
    list(session)
    plain = model_of(logits).open(max_tokens=12)
    plain.prefill(PROMPT)
    list(plain)
    assert plain.ids == session.ids
    assert taken == session.ids[:2]


@on_linux
def test_fc086_memory_is_flat_over_1000_rounds():
    def session_and_drop(model):
        session = model.open(draft="lookup", stop=["x"])
        session.prefill([4, 5] * 30)
        session.set_token_trie(trie_of([10, 11], [10, 12]))
        take_one_and_break(session)

    model = model_of(lambda history: {9: 1.0})
    kept = model.open()
    kept.prefill(PROMPT)
    sizes = []
    for i in range(1000):
        model.backend.calls.clear()
        session_and_drop(model)
        kept.reset()
        kept.prefill(PROMPT)
        take_one_and_break(kept)
        if i % 100 == 99:
            gc.collect()
            sizes.append(resident())
    assert len(list(model._sessions)) == 1
    assert sizes[-1] - sizes[2] < 3 << 20


def test_sessions_that_are_dropped_give_their_place_back(tiny_path):
    """More of them than llama.cpp has sequences, none of them closed."""
    with eliza.load(tiny_path, n_ctx=512, n_threads=1) as model:
        for i in range(300):
            session = model.open(seed=i, temperature=1.0)
            session.prefill("Yes")
            take_one_and_break(session)
        gc.collect()
        assert model.counters.generated == 300


def test_a_session_is_freed_with_its_last_reference():
    model = model_of(hashed(1, V))
    session = model.open()
    session.prefill(PROMPT)
    ref = weakref.ref(session)
    del session
    gc.collect()
    assert ref() is None
    assert model.counters.positions == 3


# -- asyncio -------------------------------------------------------------------------


def test_a_stream_gives_what_a_loop_gives():
    logits = hashed(5, V)

    async def collect(session):
        return [step async for step in session.stream()]

    model = model_of(logits)
    found = []
    for how in (list, lambda session: asyncio.run(collect(session))):
        session = model.open(max_tokens=9)
        session.prefill(PROMPT)
        found.append(how(session))
    assert found[0] == found[1]


def test_fc086_a_cancelled_task_and_the_session_used_on():
    """Cancelled in the middle of a step: without a trace, and at once."""
    slow = Slow(seconds=0)
    expected = slow.model.open(max_tokens=8)
    expected.prefill(PROMPT)
    list(expected)

    async def main():
        session = slow.model.open(max_tokens=8)
        session.prefill(PROMPT)
        steps = []

        async def consume():
            async for step in session.stream():
                steps.append(step)
                if len(steps) == 2:
                    slow.seconds = 0.2
                    slow.started.clear()

        task = asyncio.create_task(consume())
        await asyncio.to_thread(slow.started.wait, 5)
        await asyncio.sleep(0.02 if slow.seconds else 0)
        while not slow.seconds:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(slow.started.wait, 5)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < 1
        slow.seconds = 0
        assert session.ids == tuple(i for step in steps for i in step.ids)
        steps += [step async for step in session.stream()]
        assert session.ids == expected.ids
        assert tuple(i for step in steps for i in step.ids) == expected.ids

    asyncio.run(main())


def test_a_cancelled_task_disturbs_nobody_elses_call():
    """Of the same session, too: it waited for its turn, and gives it up."""
    slow = Slow(seconds=0.15)
    session = slow.model.open(max_tokens=8)
    session.prefill(PROMPT)

    async def main():
        slow.started.clear()
        running = Running(lambda: [session.next(), session.next()])
        await asyncio.to_thread(slow.started.wait, 5)

        async def consume():
            async for _ in session.stream():
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(running.join)
        assert running.error is None
        assert len(running.result) == 2

    session.next()
    asyncio.run(main())


def test_cancelled_twice_and_with_a_timeout():
    slow = Slow(seconds=0.1)
    session = slow.model.open()
    session.prefill(PROMPT)
    session.next()

    async def consume():
        async for _ in session.stream():
            pass

    async def main():
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consume(), 0.03)
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    slow.seconds = 0
    before = session.history
    assert session.row().argmax() == 4 + len(before)
    assert session.next().ids == (4 + len(before),)
    assert session.history[: len(before)] == before


# -- frontiers -----------------------------------------------------------------------


def reports(session, prompt, verb="prefill"):
    seen = []
    getattr(session, verb)(prompt, lambda f: seen.append((f.current, f.total)))
    return seen


@pytest.mark.parametrize("n_batch", [512, 8, 100])
def test_frontiers_lie_at_multiples_of_512(n_batch):
    model = model_of(hashed(1, V), n_batch=n_batch)
    session = model.open()
    assert reports(session, [4] * 1300) == [(n, 1300) for n in (0, 512, 1024, 1300)]
    assert reports(session, [5] * 300) == [(n, 1600) for n in (1300, 1536, 1600)]
    assert reports(session, [6] * 448) == [(n, 2048) for n in (1600, 2048)]
    assert reports(session, [7] * 3) == [(n, 2051) for n in (2048, 2051)]
    prompt = [*[4] * 1000, *[9] * 600]
    assert reports(session, prompt, "sync") == [
        (n, 1600) for n in (1000, 1024, 1536, 1600)
    ]
    assert reports(session, prompt, "sync") == [(1600, 1600)]
    # A prefill that is resumed has the pieces of one that was not.
    ends = [call.position + len(call.ids) for call in model.backend.calls if call.ids]
    assert ends[:3] == [512, 1024, 1300]


def test_what_was_generated_is_part_of_the_first_frontier():
    session = model_of(lambda history: {9: 1.0}).open()
    session.prefill(PROMPT)
    session.next()
    assert session.timeline.position == 3
    assert reports(session, [7]) == [(4, 5), (5, 5)]
    assert session.history == (4, 5, 6, 9, 7)


def test_a_slot_of_each_frontier_is_complete(tmp_path):
    logits = hashed(6, V)
    session = model_of(logits).open(max_tokens=5)
    prompt = [4 + i % 50 for i in range(1100)]
    paths = {}

    def save(frontier):
        paths[frontier.current] = tmp_path / str(frontier.current)
        frontier.save_slot(paths[frontier.current])

    session.prefill(prompt, save)
    assert sorted(paths) == [0, 512, 1024, 1100]
    list(session)
    for n, path in paths.items():
        other = model_of(logits).open(max_tokens=5)
        other.restore_slot(path)
        assert other.history == tuple(prompt[:n])
        if n:
            assert other.row().tolist() == logits(tuple(prompt[:n])).tolist()
        if n < 1100:
            other.prefill(prompt[n:])
        list(other)
        assert other.ids == session.ids


VERBS = {
    "next": lambda s: s.next(),
    "iter": lambda s: list(s),
    "prefill": lambda s: s.prefill([4]),
    "sync": lambda s: s.sync([4]),
    "row": lambda s: s.row(),
    "reset": lambda s: s.reset(),
    "reset_keep": lambda s: s.reset_keep(2),
    "save_slot": lambda s: s.save_slot("never"),
    "restore_slot": lambda s: s.restore_slot("never"),
    "set_token_trie": lambda s: s.set_token_trie(trie_of([10])),
    "clear_token_trie": lambda s: s.clear_token_trie(),
    "set_constraint": lambda s: s.set_constraint(trie_of([10]).cursor()),
    "clear_constraint": lambda s: s.clear_constraint(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_reentry_is_refused(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = model_of(hashed(1, V)).open()
    refused = []

    def on_frontier(frontier):
        with pytest.raises(InvalidArgument, match="in the middle of a call"):
            VERBS[verb](session)
        refused.append(frontier.current)

    session.prefill([4] * 600, on_frontier)
    assert refused == [0, 512, 600]
    assert session.history == (4,) * 600
    assert list(tmp_path.iterdir()) == []
    assert session.next().ids

    # Nor in a pick of one's own, or in a drafter.
    def pick(row):
        with pytest.raises(InvalidArgument, match="in the middle of a call"):
            VERBS[verb](session)
        refused.append("pick")
        return 10

    session.set_constraint(trie_of([10, 11], [12]).cursor(), pick)
    session.next()
    assert refused[-1] == "pick"
    assert session.ids[-2:] == (10, 11)


def test_a_cancel_inside_a_frontier_is_kept_when_reset_is_refused():
    session = model_of(hashed(1, V)).open()

    def on_frontier(frontier):
        session.cancel()
        with pytest.raises((InvalidArgument, Cancelled)):
            session.reset()

    with pytest.raises(Cancelled):
        session.prefill([4] * 600, on_frontier)
    assert session.history == ()
    with pytest.raises(Cancelled):
        session.next()


@pytest.mark.parametrize("at", [0, 512, 1024, 1030])
@pytest.mark.parametrize(
    "kind", [ValueError, KeyboardInterrupt, SystemExit, MemoryError]
)
def test_fc116_an_exception_in_a_frontier_passes_through(at, kind):
    logits = hashed(3, V)
    session = model_of(logits).open(temperature=1.0, seed=5)
    session.prefill(PROMPT)
    session.next()
    session.next()
    before = session.history, session.ids, session.finish_reason
    raised = kind("mine")

    def on_frontier(frontier):
        if frontier.current >= at:
            raise raised

    with pytest.raises(kind) as caught:
        session.prefill([7] * 1025, on_frontier)
    assert caught.value is raised
    assert (session.history, session.ids, session.finish_reason) == before
    assert session.row().tolist() == logits(session.history).tolist()
    session.prefill([8])
    assert session.history == (*before[0], 8)


def test_an_exception_where_the_runtime_cannot_cut():
    """What it has lost is computed again by the next call."""
    logits = hashed(3, V)
    session = model_of(logits, truncate=False).open()
    session.prefill(PROMPT)
    session.next()
    session.next()
    before = session.history, session.ids

    def on_frontier(frontier):
        if frontier.current == 512:
            raise Consumer

    with pytest.raises(Consumer):
        session.prefill([7] * 600, on_frontier)
    assert session.timeline.position == 0
    assert (session.history, session.ids) == before
    assert session.next().ids == (int(np.argmax(logits(before[0]))),)
    assert session.timeline.sequence.history == before[0]


def test_a_real_runtime_that_cannot_cut(tmp_path):
    """A prefill that is cancelled half-way empties it; the session goes on."""
    pytest.importorskip("llama_cpp")
    path = tiny_gguf(tmp_path / "mamba.gguf", arch="mamba")
    with eliza.load(path, n_ctx=2048, n_threads=1) as model:
        session = model.open(max_tokens=20)
        expected = model.open(max_tokens=20)
        for one in (session, expected):
            one.prefill("Yes the user")
            one.next()
        sequence, pieces = session.timeline.sequence, []
        check = sequence.on_piece

        def cancel_at_the_third():
            pieces.append(1)
            if len(pieces) == 3:
                session.cancel()
            check()

        sequence.on_piece = cancel_at_the_third
        before = session.history, session.ids
        with pytest.raises(Cancelled):
            session.prefill([9] * 1000)
        assert sequence.position == 0
        assert (session.history, session.ids) == before
        sequence.on_piece = check
        session._cancelled.clear()  # reset would drop what is looked for
        list(session)
        list(expected)
        assert session.ids == expected.ids


def test_the_session_is_closed_inside_a_frontier():
    session = model_of(hashed(3, V)).open()
    with pytest.raises(Closed):
        session.prefill([7] * 600, lambda frontier: session.close())
    assert session.closed


def test_another_session_may_be_used_inside_a_frontier():
    model = model_of(hashed(3, V))
    session, other = model.open(), model.open()
    other.prefill(PROMPT)
    session.prefill([7] * 600, lambda frontier: other.next())
    assert len(other.ids) == 3
    assert session.history == (7,) * 600


@pytest.mark.parametrize("callback", [5, "x", []])
def test_a_callback_that_is_none(callback):
    session = model_of(hashed(3, V)).open()
    with pytest.raises(eliza.InvalidType, match="give a function"):
        session.prefill(PROMPT, callback)
    assert session.history == ()
