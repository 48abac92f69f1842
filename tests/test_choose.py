import asyncio
import enum
import math
import threading
import time

import numpy as np
import pytest

from eliza import (
    Cancelled,
    Closed,
    ContextOverflow,
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    Trie,
    Vocab,
)
from support import hashed, model_of, plain_vocab, scripted
from t32 import t32


def t32_model(table, base=2, **options):
    """A model of T32 with logits by what follows the prompt: BOS and one letter."""
    return model_of(scripted(table, base), t32(), width=40, **options)


def test_the_value_comes_back_as_it_was_given():
    class Reply(enum.Enum):
        YES = "Yes"
        NO = "No"

    model = t32_model({(): {12: 5}})
    answer = model.choose("n", Reply)
    assert answer.value is Reply.NO
    assert answer.index == 1
    assert model.choose("n", {"Yes": 1, "No": 0}).value == 0


@pytest.mark.parametrize("method", ["exact", "greedy"])
def test_fc002_the_answer_ends_with_the_choice(method):
    model = t32_model({(): {13: 5}, (13,): {15: 100}, (13, 14): {15: 100}})
    answer = model.choose("n", ["Yes", "No", "Maybe"], method=method)
    assert answer.value in ("Yes", "No", "Maybe")
    if method == "greedy":
        assert answer.value == "Maybe"
        assert answer.stats.forward_passes == 1
        assert (answer.stats.decided, answer.stats.forced) == (1, 1)


def test_fc130_exact_and_greedy():
    trie = Trie.from_tokens({"skill": [10, 11], "cloud": [20, 21]}, n_vocab=64)
    low = -1e9
    table = {
        (): dict.fromkeys(range(64), low) | {10: math.log(0.6), 20: math.log(0.3)},
        (10,): dict.fromkeys(range(64), 0.0) | {11: math.log(0.01 / 0.99 * 63)},
        (20,): dict.fromkeys(range(64), low) | {21: 0.0},
    }
    model = model_of(scripted(table, 1))
    greedy = model.choose([4], trie, method="greedy", ranking="masked")
    exact = model.choose([4], trie, ranking="whole")
    assert (greedy.value, exact.value) == ("skill", "cloud")
    assert math.exp(greedy.logprob) == pytest.approx(0.6 / 0.9, abs=1e-6)
    assert math.exp(exact.logprob) == pytest.approx(0.3 / 0.9, abs=1e-6)
    assert greedy.probability == pytest.approx(0.6 / 0.9, abs=1e-6)
    assert exact.margin == pytest.approx(math.log(0.3 / 0.006), abs=1e-3)


@pytest.mark.parametrize("method", ["exact", "greedy"])
@pytest.mark.parametrize("order", [[5, 256, 300], [300, 5, 256], [256, 300, 5]])
def test_fc128_ties_go_to_the_lowest_id(method, order):
    model = model_of(lambda history: dict.fromkeys(range(512), 1.0), plain_vocab(512))
    pairs = [(f"t{i}", [i]) for i in order]
    answer = model.choose([4], pairs, method=method, ranking="whole")
    assert answer.value == "t5"
    assert answer.index == order.index(5)
    assert [r.value for r in answer.ranking] == ["t5", "t256", "t300"]
    assert answer.margin == 0


def test_ties_between_whole_choices_go_to_the_lowest_leaf():
    sure = {(10,): {11: 200.0}, (20,): {21: 200.0}}
    model = model_of(scripted({(): {}, **sure}, 1))
    trie = Trie.from_tokens({"b": [20, 21], "a": [10, 11], "c": [30]}, n_vocab=64)
    for method in ("exact", "greedy"):
        assert model.choose([4], trie, method=method).value == "a"
    assert model.choose([4], trie, allow=["b", "c"]).value == "b"


def test_ranking_never_changes_the_value():
    for seed in range(20):
        model = model_of(hashed(seed, 64))
        trie = Trie.from_tokens(
            {"a": [10, 11], "b": [10, 12, 13], "c": [20, 11], "d": [20]}, n_vocab=64
        )
        for method in ("exact", "greedy"):
            values = {
                model.choose([4], trie, method=method, ranking=ranking).value
                for ranking in (None, "masked", "whole")
            }
            assert len(values) == 1


def test_allow_is_in_the_callers_order():
    model = t32_model({(): {12: 5, 9: 3, 13: 1}})
    choices = ["No", "Yes", "Maybe"]
    for allow in (["Maybe", "Yes"], [1, 2], [False, True, True], np.array([2, 1])):
        answer = model.choose("n", choices, allow=allow, ranking="masked")
        assert (answer.value, answer.index) == ("Yes", 1)
        assert {r.value for r in answer.ranking} == {"Yes", "Maybe"}
    assert model.choose("n", choices, allow=[2]).value == "Maybe"


def test_one_choice_needs_no_ranking_pass_to_be_sure():
    answer = t32_model({}).choose("n", ["Maybe"], method="greedy", ranking="masked")
    assert answer.value == "Maybe"
    assert answer.probability == 1
    assert answer.margin == math.inf
    assert answer.stats.forward_passes == 1


def test_fc017_a_choice_given_twice_is_one():
    answer = t32_model({(): {9: 1}}).choose("n", ["Yes", "No", "Yes"], ranking="whole")
    assert len(answer.ranking) == 2
    assert answer.index == 0


def test_prompt_is_reused_and_counted():
    model = model_of(hashed(0, 64))
    trie = Trie.from_tokens({"a": [10], "b": [11]}, n_vocab=64)
    first = model.choose([4, 5, 6, 7], trie, method="greedy")
    assert (first.stats.prompt_tokens, first.stats.reused_tokens) == (4, 0)
    assert (first.stats.forward_passes, first.stats.positions) == (1, 4)
    second = model.choose([4, 5, 6, 8], trie, method="greedy")
    assert second.stats.reused_tokens == 3
    assert second.stats.positions == 1
    again = model.choose([4, 5, 6, 8], trie, ranking="whole")
    assert again.stats.forward_passes == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "beam"}, InvalidArgument, "method is 'beam'"),
        ({"ranking": "all"}, InvalidArgument, "ranking is 'all'"),
        ({"allow": []}, InvalidArgument, "permits none"),
        ({"delta": -1.0}, InvalidArgument, "delta is -1.0"),
        ({"delta": math.nan}, InvalidArgument, "delta is nan"),
        ({"suffix": 3}, InvalidType, "suffix is 3"),
    ],
)
def test_requests_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        t32_model({}).choose("n", ["Yes", "No"], **options)


@pytest.mark.parametrize(
    ("prompt", "choices", "error"),
    [
        ("n", [], InvalidArgument),
        ("n", "Yes", InvalidType),
        ("n", {"Yes", "No"}, InvalidType),
        ("n", ["Yes", "ok"], InvalidArgument),
        ([], [("a", [10]), ("b", [11])], InvalidArgument),
        (None, ["Yes"], InvalidType),
        (b"n", ["Yes"], InvalidType),
        ([4, 99], ["Yes"], InvalidArgument),
        ([4, 1.5], ["Yes"], InvalidType),
        ("n" * 100, ["Yes", "No"], ContextOverflow),
    ],
)
def test_bad_requests_leave_the_model_usable(prompt, choices, error):
    model = t32_model({(): {9: 1}}, n_ctx=64)
    with pytest.raises(error):
        model.choose(prompt, choices)
    assert model.choose("n", ["Yes", "No"]).value == "Yes"


@pytest.mark.parametrize("method", ["exact", "greedy"])
@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_fc019_no_usable_logit_is_an_error(method, value):
    row = dict.fromkeys(range(40), 1.0) | {9: value, 12: value}
    model = model_of(lambda history: row, t32(), width=40)
    with pytest.raises(NoCandidateError):
        model.choose("n", ["Yes", "No"], method=method)


def test_closed_model():
    model = t32_model({})
    model.close()
    model.close()
    with pytest.raises(Closed):
        model.choose("n", ["Yes"])
    with pytest.raises(Closed):
        model.open()


def test_fc016_an_empty_prompt():
    with pytest.raises(InvalidArgument, match="empty prompt"):
        model_of(scripted({}, 0), t32(bos=None)).choose("", ["Yes", "No"])
    assert t32_model({(): {12: 1}}, base=1).choose("", ["Yes", "No"]).value == "No"


def slow_model(seconds=0.05):
    def logits(history):
        time.sleep(seconds)
        return {}

    return model_of(logits, max_rows=8)


WIDE = Trie.from_tokens(
    {f"{i}-{j}": [i, j, 5] for i in range(10, 40) for j in range(4, 12)}, n_vocab=64
)


def test_cancel_and_go_on():
    model = slow_model()
    event = threading.Event()
    threading.Timer(0.1, event.set).start()
    start = time.perf_counter()
    with pytest.raises(Cancelled):
        model.choose([4], WIDE, ranking="whole", cancel=event)
    assert time.perf_counter() - start < 30
    small = Trie.from_tokens({"a": [10], "b": [11]}, n_vocab=64)
    assert model.choose([4], small).value == "a"
    with pytest.raises(InvalidType, match="cancel is 3; give an object with is_set"):
        model.choose([4], small, cancel=3)


def test_close_interrupts_the_running_call():
    model = slow_model()
    raised = []

    def work():
        try:
            while True:
                model.choose([4], WIDE, ranking="whole")
        except Closed as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    model.close()
    thread.join(30)
    assert raised


def test_achoose_gives_the_answer_and_can_be_cancelled():
    model = slow_model()
    small = Trie.from_tokens({"a": [10], "b": [11]}, n_vocab=64)

    async def main():
        assert (await model.achoose([4], small)).value == "a"
        task = asyncio.create_task(model.achoose([4], WIDE, ranking="whole"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await model.achoose([4], small)).value

    assert asyncio.run(main()) == "a"


def test_threads_queue_on_one_model():
    model = model_of(hashed(5, 64))
    trie = Trie.from_tokens(
        {"a": [10, 11], "b": [10, 12], "c": [20, 11], "d": [20, 13]}, n_vocab=64
    )
    expected = {n: model.choose([4, n], trie).value for n in range(4, 12)}
    wrong = []

    def work(n):
        for _ in range(20):
            if model.choose([4, n], trie).value != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("ranking", [None, "masked", "whole"])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_an_interrupt_anywhere_leaves_the_model_right(ranking, at):
    logits, seen = hashed(4, 64), []

    def interrupted(history):
        seen.append(history)
        if len(seen) == at:
            raise KeyboardInterrupt
        return logits(history)

    model = model_of(interrupted, max_rows=4)
    with pytest.raises(KeyboardInterrupt):
        model.choose([4, 5], WIDE, ranking=ranking)
    fresh = model_of(logits).choose([4, 5], WIDE, ranking=ranking)
    again = model.choose([4, 5], WIDE, ranking=ranking)
    assert (again.value, again.logprob) == (fresh.value, fresh.logprob)


@pytest.mark.parametrize("request_", [{}, {"ranking": "masked"}])
def test_cancel_during_a_search(request_):
    model = slow_model(0.02)
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    with pytest.raises(Cancelled):
        model.choose([4], WIDE, cancel=event, delta=math.inf, **request_)
    small = Trie.from_tokens({"a": [10], "b": [11]}, n_vocab=64)
    assert model.choose([4], small).value == "a"


def test_a_likely_beginning_of_an_unlikely_choice_does_not_win():
    """A constrained walk answers London where the model itself prefers Paris.

    Its first id, shared by London and other unlikely choices, looks best.
    """
    leaves = {"London": [10, 11], "Lisbon": [10, 12], "Lima": [10, 13], "Paris": [20]}
    low = dict.fromkeys(range(64), -30.0)
    table = {
        (): low | {10: math.log(0.5), 20: math.log(0.45)},
        (10,): low | {11: math.log(0.2), 12: math.log(0.1), 50: math.log(0.7)},
    }
    model = model_of(scripted(table, 1))
    trie = Trie.from_tokens(leaves, n_vocab=64)
    assert model.choose([4], trie, method="greedy").value == "London"
    exact = model.choose([4], trie, ranking="whole")
    assert exact.value == "Paris"
    scores = {r.value: math.exp(r.logprob) for r in exact.ranking}
    assert scores["Paris"] == pytest.approx(0.45 / 0.95, abs=1e-3)
    assert scores["London"] == pytest.approx(0.5 / 0.95 * 0.2, abs=1e-3)


def test_fc126_rankings_are_strict_json():
    import msgspec

    row = dict.fromkeys(range(40), 0.0) | {9: 5.0, 12: -math.inf}
    model = model_of(lambda history: row, t32(), width=40)
    answer = model.choose("n", ["Yes", "No"], ranking="whole")
    assert [r.value for r in answer.ranking] == ["Yes", "No"]
    assert answer.ranking[1].probability == 0
    text = msgspec.json.encode([r._asdict() for r in answer.ranking]).decode()
    assert "Infinity" not in text
    assert "NaN" not in text


def test_fc040_what_was_kept_stays_as_it_was():
    """Copies of 100 rows, which all differ, have the values that they had.

    Windows are documented to be overwritten; to hold them disturbs nothing.
    """
    model = model_of(hashed(3, 40), t32(), width=40)
    plain = model.choose("n", ["Yes", "Maybe"]).value
    sequence = model.backend.open()
    windows, copies, then = [], [], []
    for step in range(100):
        sequence.decode([4 + step % 20])
        windows.append(sequence.logits_window())
        copies.append(sequence.logits())
        then.append(copies[-1].tobytes())
        assert windows[-1].tobytes() == then[-1]
    assert len(set(then)) == 100
    assert [copy.tobytes() for copy in copies] == then
    assert [
        window.tobytes() == row for window, row in zip(windows, then, strict=True)
    ] == [
        *[False] * 99,
        True,
    ]
    assert model.choose("n", ["Yes", "Maybe"]).value == plain
    assert [copy.tobytes() for copy in copies] == then


def test_the_regex_trap_london_for_paris():
    """A mask over bytes allows the piece `L`, which leads to London alone.

    The tokenizer never writes London so: with its own spellings Paris wins. With all
    spellings the trap is there, as documented.
    """
    pieces = ["</s>", "Q", "London", "Berlin", "Paris", "L", "ondon", "o", "n", "d"]
    pieces += list("BerliPas")
    vocab = Vocab.from_tokens(pieces, eog=[0])
    row = {2: 20.0, 3: 19.0, 4: 27.26, 5: 27.41}
    model = model_of(lambda history: row, vocab)
    cities = ["London", "Berlin", "Paris"]
    for method in ("exact", "greedy"):
        assert model.choose("Q", cities, method=method).value == "Paris"
    trapped = model.choose("Q", cities, method="greedy", spelling="all")
    assert trapped.value == "London"
