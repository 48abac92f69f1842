"""The link for llama.cpp's sampler chains, against the installed libllama.

The first three tests are those of the sampler's design note, as DESIGN 3 corrects them:
a new link constrains at once, nothing is allowed after the choice but the end of the
generation (or, where that is asked for, anything), and no error lets free text through.
"""

import ctypes
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from candidates import Candidates, L, new_chain, pointer
from eliza.errors import (
    AbiMismatch,
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    OffPathError,
)
from eliza.hooks._library import check_layout
from eliza.hooks.llama import Link
from support import END, choice_sets

INF = math.inf


def trie_of(leaves, n_vocab=1000):
    return eliza.Trie.from_tokens(leaves, n_vocab=n_vocab)


def link_of(leaves, n_vocab=1000, **options):
    options.setdefault("eog", [END])
    return Link(trie_of(leaves, n_vocab), **options)


ACTIONS = {"THINK": [100, 101], "EXECUTE": [200]}


# The three tests of the design note


def test_a_descriptor_without_leaves_is_an_error():
    leafless = '{"path": "action", "leaves": []}'
    for descriptors in ("", leafless):
        text = f'{{"modelId": "t", "descriptors": [{descriptors}]}}'
        with pytest.raises(InvalidArgument):
            eliza.TokenTreePayload.from_json(text).trie("action", n_vocab=1000)


@pytest.mark.parametrize("mode", [0, 1])
def test_invalid_tokens_are_masked(mode):
    """FC-062: the position in the array is not the id."""
    link = link_of(ACTIONS, mode=mode)
    c = Candidates([(100, 5.0), (200, 4.0), (999, 6.0)]).apply(link)
    assert c.logits == [5.0, 4.0, -INF]
    assert c.selected == (0 if mode == 0 else -1)
    link.check()


@pytest.mark.parametrize("after", ["end", "free"])
def test_walking(after):
    link = link_of({"THINK": [100, 101]}, after=after)
    assert Candidates([(100, 1.0), (101, 9.0)]).apply(link).logits == [1.0, -INF]
    L.llama_sampler_accept(pointer(link), 100)
    assert link.depth == 1
    assert Candidates([(100, 9.0), (101, 1.0)]).apply(link).logits == [-INF, 1.0]
    L.llama_sampler_accept(pointer(link), 101)
    assert (link.done, link.name, link.path) == (True, "THINK", (100, 101))
    c = Candidates([(100, 9.0), (101, 1.0), (END, -3.0)]).apply(link)
    if after == "end":
        assert c.logits == [-INF, -INF, -3.0]
        assert c.token == END
        L.llama_sampler_accept(pointer(link), END)
        link.check()
        assert Candidates([(7, 1.0), (END, 0.0)]).apply(link).left == {END}
    else:
        assert c.logits == [9.0, 1.0, -3.0]
        assert c.token == 100
        L.llama_sampler_accept(pointer(link), 7)
        link.check()


# Candidates


@st.composite
def candidate_arrays(draw, n_vocab=64):
    ids = draw(st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=80))
    if draw(st.booleans()):
        ids = list(range(n_vocab))  # as llama.cpp makes them
    logit = st.one_of(
        st.floats(-20, 20, width=32), st.sampled_from([0.0, -INF, math.nan, 2.0**127])
    )
    pairs = [(id, draw(logit)) for id in ids]
    is_sorted = draw(st.booleans())
    if is_sorted:
        pairs.sort(key=lambda p: -p[1] if p[1] == p[1] else INF)
    return pairs, draw(st.integers(-1, len(pairs) - 1)), is_sorted


@given(choice_sets(), candidate_arrays(), st.integers(0, 1), st.data())
@settings(max_examples=300, deadline=None)
def test_any_array_is_masked_as_the_reference_says(leaves, given_array, mode, data):
    pairs, selected, is_sorted = given_array
    link = link_of(leaves, 64, mode=mode)
    path = data.draw(st.sampled_from(sorted(leaves.values())))
    for token in path[: data.draw(st.integers(0, len(path) - 1))]:
        link.accept(token)
    allowed = set(link.allowed().tolist())
    c = Candidates(pairs, selected, is_sorted).apply(link)
    assert c.ids == [id for id, _ in pairs]
    unique = len({id for id, _ in pairs}) == len(pairs)
    left = {id for id, x in pairs if id in allowed and x > -INF}
    assert c.left == left
    assert not np.isnan(c.logits).any()
    if not left:
        assert c.selected == -1
        with pytest.raises(NoCandidateError):
            link.check()
        return
    for (id, before), after in zip(pairs, c.logits, strict=True):
        if id in left and unique:
            assert after == before or (math.isnan(before) and after == -INF)
    assert not c.array.sorted or c.logits == sorted(c.logits, reverse=True)
    if mode == 0 and unique:
        best = max(x for id, x in pairs if id in left)
        assert c.token == min(id for id, x in pairs if id in left and x == best)
    elif unique:
        assert c.selected == -1 or c.logits[c.selected] > -INF
    link.check()


@pytest.mark.parametrize(
    "pairs",
    [
        [(999, 6.0), (200, 4.0), (100, 5.0)],
        [(999, 6.0), (100, 5.0), (200, 4.0)],
        [(999, 6.0), (200, 4.0), (100, 5.0), (200, 4.5), (200, -1.0)],
    ],
)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_fc_062_the_array_is_not_indexed_by_id(pairs, is_sorted):
    link = link_of(ACTIONS)
    c = Candidates(pairs, 0, is_sorted).apply(link)
    assert c.left == {100, 200}
    assert c.token == 100
    assert not c.array.sorted


@pytest.mark.parametrize("order", [(5, 256, 300), (300, 5, 256), (256, 300, 5)])
def test_fc_128_ties_go_to_the_lowest_id(order):
    """In whichever order the candidates come, and whatever else is as high."""
    link = link_of({str(i): [i] for i in order}, mode="greedy")
    others = [(7, 1.0), (400, 1.0)]
    pairs = [others[0], *((i, 1.0) for i in order), others[1]]
    assert Candidates(pairs).apply(link).token == 5


def test_fc_062_an_empty_array_is_an_error():
    link = link_of(ACTIONS)
    assert Candidates([], 0).apply(link).selected == -1
    with pytest.raises(NoCandidateError, match="empty"):
        link.check()


def test_a_duplicate_of_an_id_in_its_place_does_no_harm():
    link = link_of({"a": [1], "b": [2]}, 8)
    c = Candidates([(0, 9.0), (1, 1.0), (2, 2.0), (2, 5.0), (7, 9.0)]).apply(link)
    assert c.left == {1, 2}
    assert c.token == 2


def test_ids_outside_of_the_vocabulary_are_masked():
    link = link_of({"a": [1]}, 40)
    c = Candidates([(-1, 9.0), (2**31 - 1, 9.0), (-(2**31), 9.0), (40, 9), (1, 0.5)])
    assert c.apply(link).logits == [-INF] * 4 + [0.5]


def test_infinite_logits_share_everything():
    """FC-023: a softmax over what is left stays finite."""
    for ids in ([1, 2, 3, 4], [4, 3, 2, 1]):
        link = link_of({"a": [1], "b": [2], "c": [3]}, 8, mode=1)
        at = {1: INF, 2: 5.0, 3: INF, 4: INF}
        c = Candidates([(id, at[id]) for id in ids]).apply(link)
        assert dict(zip(c.ids, c.logits, strict=True)) == {
            1: 0.0,
            2: -INF,
            3: 0.0,
            4: -INF,
        }
        dist = L.llama_sampler_init_dist(1)
        assert c.apply(dist).token in (1, 3)
        L.llama_sampler_free(dist)


def test_mode_1_keeps_a_selection_that_is_allowed():
    link = link_of(ACTIONS, mode=1)
    assert Candidates([(999, 6.0), (100, 5.0)], selected=1).apply(link).selected == 1
    assert Candidates([(999, 6.0), (100, 5.0)], selected=0).apply(link).selected == -1


@pytest.mark.parametrize("order", ["by id", "shuffled", "backwards", "sorted, cut"])
@pytest.mark.parametrize("mode", [0, 1])
def test_many_allowed_ids_are_not_each_looked_for(mode, order):
    """K + n steps, not K times n, which are 10**10 here: over a second at 8 in a ns."""
    n_vocab, rng = 131_072, np.random.default_rng(5)
    allowed = np.sort(rng.permutation(n_vocab)[:100_000]).astype(np.int32)
    offsets = np.arange(len(allowed) + 1, dtype=np.int64)
    trie = eliza.Trie.from_arrays(allowed, offsets, n_vocab=n_vocab)
    link = Link(trie, eog=[END], mode=mode)
    given_array = np.zeros(n_vocab, [("id", "i4"), ("logit", "f4"), ("p", "f4")])
    given_array["id"] = np.arange(n_vocab)
    given_array["logit"] = rng.standard_normal(n_vocab)
    if order == "shuffled":
        given_array = rng.permutation(given_array)
    elif order == "backwards":
        given_array = given_array[::-1]
    elif order == "sorted, cut":
        given_array = np.sort(given_array, order="logit")[::-1][: n_vocab // 2]
    wanted = np.where(
        np.isin(given_array["id"], allowed), given_array["logit"], -np.inf
    )
    spent = []
    for _ in range(3):
        data = np.ascontiguousarray(given_array).copy()
        c = Candidates([], is_sorted=order.startswith("sorted"))
        c.array.data = data.ctypes.data_as(L.llama_token_data_p)
        c.array.size = len(data)
        start = time.thread_time()  # of this thread alone, whatever else runs
        c.apply(link)
        spent.append(time.thread_time() - start)
        np.testing.assert_array_equal(data["logit"], wanted)
        assert c.selected == (-1 if mode else np.argmax(wanted))
    link.check()
    assert min(spent) < 0.2


# Errors


@pytest.mark.parametrize("bad", [-INF, math.nan])
@pytest.mark.parametrize("mode", [0, 1])
def test_fc_019_nothing_left_is_an_error_and_not_free_text(bad, mode):
    link = link_of(ACTIONS, mode=mode)
    c = Candidates([(100, bad), (200, bad), (999, 6.0)]).apply(link)
    assert c.logits == [-INF] * 3
    assert c.selected == -1
    # Until it is raised, nothing gets through, and the position stays.
    assert Candidates([(100, 1.0)]).apply(link).logits == [-INF]
    L.llama_sampler_accept(pointer(link), 100)
    with pytest.raises(NoCandidateError, match="100, 200"):
        link.check()
    link.check()
    assert link.depth == 0
    assert Candidates([(100, 1.0)]).apply(link).logits == [1.0]


def test_fc_020_an_id_off_the_path_is_kept_as_an_error():
    link = link_of(ACTIONS)
    L.llama_sampler_accept(pointer(link), 100)
    for token in (200, -1, 2**31 - 1, 1000, 77):
        L.llama_sampler_accept(pointer(link), token)
        assert Candidates([(101, 1.0)]).apply(link).left == set()
        with pytest.raises(OffPathError, match=str(token)):
            link.check()
        assert link.path == (100,)
    L.llama_sampler_accept(pointer(link), 101)
    link.check()
    assert link.done
    L.llama_sampler_accept(pointer(link), 55)
    with pytest.raises(OffPathError, match="choice is complete"):
        link.check()


def test_the_first_error_is_the_one_that_is_raised():
    link = link_of(ACTIONS)
    L.llama_sampler_accept(pointer(link), 5)
    L.llama_sampler_accept(pointer(link), 6)
    Candidates([(5, 1.0)]).apply(link)
    with pytest.raises(OffPathError, match="id 5 "):
        link.check()


ASKING = {
    "done": lambda link: link.done,
    "leaf": lambda link: link.leaf,
    "name": lambda link: link.name,
    "depth": lambda link: link.depth,
    "path": lambda link: link.path,
    "cursor": lambda link: link.cursor,
    "allowed": lambda link: link.allowed(),
    "accept": lambda link: link.accept(100),
    "clone": lambda link: link.clone(),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize("after", ["end", "free"])
def test_fc_118_whatever_asks_the_link_raises_what_is_noted(ask, after):
    """The error is raised at the next boundary to Python, once, and not by repr."""
    link = link_of(ACTIONS, after=after)
    L.llama_sampler_accept(pointer(link), 77)
    assert "Link greedy" in repr(link)
    with pytest.raises(OffPathError, match="id 77 "):
        ask(link)
    ask(link)
    link.check()
    bad = link_of(ACTIONS, after=after)
    Candidates([(100, -INF), (999, 6.0)]).apply(bad)
    with pytest.raises(NoCandidateError):
        ask(bad)
    ask(bad)


def test_fc_118_a_loop_that_only_asks_whether_it_is_done_ends():
    """A draw behind a link that lets nothing through takes something all the same."""
    link = link_of(ACTIONS, mode=1)
    outer = new_chain()
    link.add_to(outer)
    L.llama_sampler_chain_add(outer, L.llama_sampler_init_dist(1))
    taken = []
    L.llama_sampler_accept(pointer(link), 100)
    L.llama_sampler_accept(pointer(link), 7)  # what a caller put in by mistake

    def loop():
        while not link.done and len(taken) < 50:
            c = Candidates([(5, 1.0), (7, 2.0), (101, 0.0)]).apply(outer)
            L.llama_sampler_accept(outer, c.token)
            taken.append(c.token)

    with pytest.raises(OffPathError, match="id 7 "):
        loop()
    assert taken == []
    L.llama_sampler_free(outer)


def test_fc_118_what_was_noted_outlives_the_sampler():
    link = link_of(ACTIONS)
    outer = new_chain()
    link.add_to(outer)
    L.llama_sampler_accept(outer, 77)
    L.llama_sampler_free(outer)
    with pytest.raises(OffPathError, match="id 77 "):
        _ = link.name
    assert link.path == ()


def test_reset_forgets_errors():
    link = link_of(ACTIONS)
    L.llama_sampler_accept(pointer(link), 100)
    L.llama_sampler_accept(pointer(link), 5)
    L.llama_sampler_reset(pointer(link))
    link.check()
    assert link.depth == 0
    assert Candidates([(100, 1.0)]).apply(link).token == 100


# Making links


def test_a_link_of_a_cursor_starts_where_that_is():
    cursor = trie_of(ACTIONS).cursor()
    cursor.accept(100)
    link = Link(cursor, eog=[END])
    cursor.reset()
    assert link.allowed().tolist() == [101]
    copy = link.clone()
    raw = L.llama_sampler_clone(pointer(link))
    link.accept(101)
    assert link.name == "THINK"
    # A reset goes back there, as that of the other hooks: in clones too.
    L.llama_sampler_reset(pointer(link))
    assert (link.path, link.allowed().tolist()) == ((100,), [101])
    copy.accept(101)
    copy.reset()
    assert (copy.path, copy.allowed().tolist()) == ((100,), [101])
    L.llama_sampler_accept(raw, 101)
    L.llama_sampler_reset(raw)
    assert Candidates([(100, 9.0), (101, 1.0)]).apply(raw).left == {101}
    L.llama_sampler_free(raw)
    again = Link(link.cursor, eog=[END])
    again.accept(101)
    again.reset()
    assert again.path == (100,)


def test_a_choice_that_others_continue_ends_by_an_eog_id():
    """FC-001."""
    leaves = {"go": [10], "go on": [10, 11]}
    link = link_of(leaves)
    link.accept(10)
    assert link.allowed().tolist() == [END, 11]
    link.accept(END)
    assert link.name == "go"
    own = trie_of(leaves).cursor(exits=[50])
    assert Link(own, eog=[END]).cursor.allowed().tolist() == [10]
    with pytest.raises(InvalidArgument, match="no exit id"):
        Link(trie_of(leaves), after="free")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": 2}, InvalidArgument),
        ({"mode": True}, InvalidArgument),
        ({"mode": "argmax"}, InvalidArgument),
        ({"after": "never"}, InvalidArgument),
        ({"eog": None}, InvalidArgument),
        ({"eog": []}, InvalidArgument),
        ({"eog": [1000]}, InvalidArgument),
        ({"eog": [-1]}, InvalidArgument),
        ({"eog": "2"}, InvalidType),
        ({"eog": [True]}, InvalidType),
        ({"allow": []}, InvalidArgument),
    ],
)
def test_fc_099_what_is_wrong_is_an_error_when_a_link_is_made(options, error):
    with pytest.raises(error):
        link_of(ACTIONS, **options)


@pytest.mark.parametrize("thing", [None, {"a": [1]}, 5, "trie"])
def test_only_tries_and_cursors(thing):
    with pytest.raises(InvalidType):
        Link(thing, eog=[END])


def test_allow_and_exits():
    link = Link(trie_of(ACTIONS), eog=[END], allow=["EXECUTE"])
    assert link.allowed().tolist() == [200]
    with pytest.raises(InvalidArgument, match="cursor has its own"):
        Link(trie_of(ACTIONS).cursor(), eog=[END], allow=["EXECUTE"])


def other_library(**structs):
    """Return a stand-in for `llama_cpp.llama_cpp` with other structs."""
    names = ("llama_token_data", "llama_token_data_array", "llama_sampler")
    known = {name: getattr(L, name) for name in (*names, "llama_sampler_i")}
    return SimpleNamespace(**(known | structs))


def struct(fields):
    return type("struct", (ctypes.Structure,), {"_fields_": fields})


def test_fc_114_an_unknown_layout_is_refused():
    """The message names the field."""
    word = ctypes.c_void_p
    check_layout(other_library())
    fields = [(name, word) for name, *_ in L.llama_sampler_i._fields_]
    for fewer in (6, 10, 11, 12):  # versions that knew fewer callbacks
        check_layout(other_library(llama_sampler_i=struct(fields[:fewer])))
    wrong = {
        "field 12 is added ": [*fields, ("added", word)],
        "field 5 is nothing": fields[:5],
        "field 1 is apply ": [fields[0], fields[2], fields[1], *fields[3:]],
        "field 0 is id ": [("id", ctypes.c_int32), *fields],
    }
    for message, changed in wrong.items():
        with pytest.raises(AbiMismatch, match=message):
            check_layout(other_library(llama_sampler_i=struct(changed)))
    data = [("id", ctypes.c_int32), ("logit", ctypes.c_float)]
    with pytest.raises(AbiMismatch, match="llama_token_data of this"):
        check_layout(other_library(llama_token_data=struct(data)))
    wide = [("id", ctypes.c_int64), ("logit", ctypes.c_float), ("p", ctypes.c_float)]
    with pytest.raises(AbiMismatch, match="field 0"):
        check_layout(other_library(llama_token_data=struct(wide)))
    with pytest.raises(AbiMismatch, match="no struct"):
        check_layout(SimpleNamespace())
