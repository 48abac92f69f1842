"""Links in chains: who owns them, in which order they stand, what a chain draws."""

import ctypes
import math
import threading

import numpy as np
import pytest

import eliza
from candidates import Candidates, L, address, new_chain, pointer
from eliza.errors import (
    Closed,
    InvalidArgument,
    NoCandidateError,
    OffPathError,
)
from eliza.hooks.llama import Link, chain
from support import END

INF = math.inf


def trie_of(leaves, n_vocab=1000):
    return eliza.Trie.from_tokens(leaves, n_vocab=n_vocab)


def link_of(leaves, n_vocab=1000, **options):
    options.setdefault("eog", [END])
    return Link(trie_of(leaves, n_vocab), **options)


ACTIONS = {"THINK": [100, 101], "EXECUTE": [200]}


TRUNCATING = [
    lambda: L.llama_sampler_init_top_k(40),
    lambda: L.llama_sampler_init_top_p(0.9, 1),
    lambda: L.llama_sampler_init_min_p(0.1, 1),
    lambda: L.llama_sampler_init_typical(0.9, 1),
    lambda: L.llama_sampler_init_xtc(0.5, 0.1, 1, 0),
    lambda: L.llama_sampler_init_top_n_sigma(1.0),
    lambda: L.llama_sampler_init_temp(0.0),
    lambda: L.llama_sampler_init_greedy(),
    lambda: L.llama_sampler_init_dist(0),
    lambda: L.llama_sampler_init_mirostat_v2(0, 5.0, 0.1),
]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("make", TRUNCATING)
def test_fc_060_a_link_is_not_added_after_one_that_cuts_down(make, nested):
    outer = new_chain()
    L.llama_sampler_chain_add(
        outer, L.llama_sampler_init_penalties(1000, 64, 1.1, 0, 0)
    )
    inner = outer
    if nested:
        inner = new_chain()
        L.llama_sampler_chain_add(outer, inner)
    L.llama_sampler_chain_add(inner, make())
    with link_of(ACTIONS) as link:
        with pytest.raises(InvalidArgument, match="before anything that cuts down"):
            link.add_to(outer)
        assert link.owned
        assert L.llama_sampler_chain_n(outer) == 2
    L.llama_sampler_free(outer)


def test_links_without_a_name_do_not_end_the_process():
    """Those that llama-cpp-python makes for logits processors have none."""
    custom = L.llama_sampler_i(apply=L.llama_sampler_i_apply(lambda smpl, cur: None))
    nameless = L.llama_sampler(ctypes.pointer(custom), None)
    outer = new_chain()
    L.llama_sampler_chain_add(outer, ctypes.pointer(nameless))
    link = link_of(ACTIONS)
    link.add_to(outer)
    assert Candidates([(100, 1.0), (5, 2.0)]).apply(outer).token == 100
    L.llama_sampler_chain_remove(outer, 0)
    L.llama_sampler_free(outer)


def test_ownership():
    """FC-099: whoever has it frees it, once."""
    link = link_of(ACTIONS)
    outer, other = new_chain(), new_chain()
    assert (link.owned, link.alive) == (True, True)
    link.add_to(outer)
    assert (link.owned, link.alive) == (False, True)
    for to in (outer, other):
        with pytest.raises(InvalidArgument, match="in a chain already"):
            link.add_to(to)
    with pytest.raises(InvalidArgument, match="not in that chain"):
        link.remove_from(other)
    link.remove_from(outer)
    assert link.owned
    link.add_to(other)
    link.accept(100)
    L.llama_sampler_free(outer)
    assert link.alive
    L.llama_sampler_free(other)
    assert not link.alive
    for use in (
        lambda: link.pointer,
        link.check,
        link.reset,
        link.clone,
        link.allowed,
        lambda: link.accept(101),
        lambda: link.add_to(new_chain()),
    ):
        with pytest.raises(Closed, match="freed"):
            use()
    assert link.path == (100,)  # what it knows, it still says
    link.close()
    link.close()
    with pytest.raises(Closed, match="closed"):
        link.check()
    with pytest.raises(Closed):
        _ = link.path


@pytest.mark.parametrize("chain_", [0, None, 12.5, "chain"])
def test_what_is_no_chain_is_refused(chain_):
    with pytest.raises(InvalidArgument):
        link_of(ACTIONS).add_to(chain_)


def test_another_sampler_is_no_chain():
    greedy = L.llama_sampler_init_greedy()
    with pytest.raises(InvalidArgument, match="no sampler chain"):
        link_of(ACTIONS).add_to(greedy)
    L.llama_sampler_free(greedy)


def test_clones_keep_the_position_and_go_their_own_ways():
    """FC-043; the clone of the C interface too."""
    link = link_of({"a": [10, 11], "b": [20, 21], "c": [10, 12]})
    link.accept(10)
    copy = link.clone()
    raw = L.llama_sampler_clone(pointer(link))
    link.accept(11)
    assert copy.allowed().tolist() == [11, 12]
    copy.accept(12)
    assert (link.name, copy.name) == ("a", "c")
    link.close()
    assert Candidates([(11, 1.0), (12, 2.0), (20, 9.0)]).apply(raw).left == {11, 12}
    L.llama_sampler_free(raw)
    assert copy.name == "c"


def test_a_clone_that_c_makes_keeps_an_error():
    link = link_of(ACTIONS)
    L.llama_sampler_accept(pointer(link), 5)
    raw = L.llama_sampler_clone(pointer(link))
    with pytest.raises(OffPathError):
        link.check()
    assert Candidates([(100, 1.0), (5, 2.0)]).apply(link).left == {100}
    assert Candidates([(100, 1.0), (5, 2.0)]).apply(raw).left == set()
    L.llama_sampler_reset(raw)
    assert Candidates([(100, 1.0), (5, 2.0)]).apply(raw).left == {100}
    L.llama_sampler_free(raw)


def test_state_is_copied_across_tries():
    """What the copy says of itself is of the trie that it has now."""
    leaves = {f"n{i:02}": [i, i + 1, i + 2] for i in range(60)}
    link, other = link_of(leaves), link_of({"a": [10, 11, 20], "b": [10, 12]}, 99)
    for token in (55, 56):
        link.accept(token)
    before = Link(link.cursor, eog=[END])
    link.accept(57)
    other.accept(10)
    L.llama_sampler_copy(pointer(link), pointer(other))
    assert (other.name, other.leaf) == ("n55", 55)
    assert (other.path, other.depth, other.done) == ((55, 56, 57), 3, True)
    assert other.cursor.trie is link.cursor.trie
    assert repr(other) == repr(link)
    copy = other.clone()
    assert (copy.name, copy.path) == ("n55", (55, 56, 57))
    copy.reset()
    copy.accept(3)
    assert copy.allowed().tolist() == [4]
    # The other way, an error, and where a reset goes back to.
    L.llama_sampler_copy(pointer(before), pointer(other))
    L.llama_sampler_accept(pointer(other), 8)
    with pytest.raises(OffPathError, match="allowed: 57"):
        other.check()
    other.accept(57)
    other.reset()
    assert other.path == (55, 56)


def test_state_is_copied_between_samplers():
    link, other = link_of(ACTIONS), link_of({"b": [7, 8]}, 3000)
    link.accept(100)
    other.accept(7)
    assert Candidates([(8, 1.0)]).apply(other).left == {8}
    L.llama_sampler_copy(pointer(link), pointer(other))
    L.llama_sampler_copy(pointer(other), pointer(other))
    other.accept(101)
    assert Candidates([(2999, 1.0), (END, 0.0)]).apply(other).left == {END}
    assert link.depth == 1


def test_the_order_of_a_chain():
    with chain(
        link_of(ACTIONS, mode="sample"),
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.05,
        seed=1,
        penalties={"repeat": 1.1},
        logit_bias={5: 1.0},
    ) as sampler:
        assert sampler.names == (
            "logit-bias",
            "penalties",
            "eliza-token-trie",
            *("temp", "top-k", "top-p", "min-p", "dist"),
        )
    with chain(link_of(ACTIONS)) as sampler:
        assert sampler.names == ("eliza-token-trie",)
    with chain(link_of(ACTIONS, mode=1), temperature=0) as sampler:
        assert sampler.names == ("eliza-token-trie", "greedy")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": INF},
        {"temperature": 1e-30},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"seed": -1},
        {"seed": 2**32},
        {"logit_bias": {1000: 1.0}},
        {"logit_bias": {5: math.nan}},
        {"penalties": {"repeat": 0.0}},
        {"penalties": {"frequency": INF}},
        {"penalties": {"unknown": 1.0}},
        {"penalties": {"last_n": -1}},
    ],
)
def test_fc_025_options_are_checked_and_the_link_stays_ours(options):
    link = link_of(ACTIONS, mode="sample")
    with pytest.raises(InvalidArgument):
        chain(link, **options)
    assert link.owned


def test_a_greedy_link_takes_no_options_of_a_draw():
    with pytest.raises(InvalidArgument, match="greedy"):
        chain(link_of(ACTIONS), temperature=0.5)


def row_of(n=1000, **at):
    row = np.zeros(n, np.float32)
    for id, value in at.items():
        row[int(id[1:])] = value
    return row


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 40},
        {"top_p": 0.1},
        {"min_p": 0.9},
        {"top_k": 2, "top_p": 0.1, "min_p": 0.9, "temperature": 0.5},
    ],
)
def test_fc_060_filters_work_over_what_is_allowed(options):
    row = np.linspace(1000, 0, 1000, dtype=np.float32)
    for seed in range(5):
        with chain(
            link_of({"a": [500], "b": [501]}, mode=1), seed=seed, **options
        ) as sampler:
            token = sampler.sample_row(row)
            assert token == 500 if options.get("top_k") == 1 else token in (500, 501)


def test_fc_063_penalties_and_bias_against_the_only_allowed_id():
    leaves = {"888": [8, 8, 8], "9": [9]}
    row = row_of(_8=-5.0, _9=-4000.0)
    for mode, options in ((0, {}), (1, {"seed": 3})):
        with chain(
            link_of(leaves, mode=mode),
            penalties={"repeat": 1.5},
            logit_bias={8: -100.0},
            **options,
        ) as sampler:
            assert [sampler.sample_row(row) for _ in range(3)] == [8, 8, 8]
            assert sampler.link.name == "888"
        with chain(
            link_of(leaves, mode=mode), logit_bias={8: -INF}, **options
        ) as sampler:
            assert sampler.sample_row(row) == 9
            sampler.reset()
            sampler.accept(8)
            with pytest.raises(NoCandidateError):
                sampler.sample_row(row)
            assert sampler.link.path == (8,)


def test_a_failed_step_changes_nothing_not_even_the_random_state():
    """R7."""
    leaves = {f"n{i}": [10 + i, 50 + i] for i in range(30)}
    row = np.zeros(1000, np.float32)
    bad = np.full(1000, math.nan, np.float32)
    with (
        chain(link_of(leaves, mode=1), seed=5, penalties={"repeat": 1.3}) as sampler,
        chain(link_of(leaves, mode=1), seed=5, penalties={"repeat": 1.3}) as other,
    ):
        for failures in range(5):
            sampler.reset(), other.reset()
            for _ in range(failures):
                with pytest.raises(NoCandidateError):
                    sampler.sample_row(bad)
                with pytest.raises(OffPathError):
                    sampler.accept(99)
            for _ in range(2):
                assert sampler.sample_row(row) == other.sample_row(row)


def test_a_chain_that_lost_its_link_is_refused():
    """FC-118: never free text."""
    link = link_of(ACTIONS, mode=1)
    with chain(link, seed=1) as sampler:
        link.remove_from(sampler)
        for use in (lambda: sampler.sample_row(row_of()), sampler.clone):
            with pytest.raises(InvalidArgument, match="taken out"):
                use()
        other = new_chain()
        link.add_to(other)
        with pytest.raises(InvalidArgument, match="taken out"):
            sampler.clone()
        L.llama_sampler_free(other)
        with pytest.raises(Closed):
            sampler.clone()


def test_a_chain_raises_what_is_noted_in_its_link():
    with chain(link_of(ACTIONS, mode=1), seed=1) as sampler:
        for use in (
            sampler.clone,
            sampler.check,
            lambda: sampler.accept(100),
            lambda: sampler.sample_row(row_of()),
        ):
            L.llama_sampler_accept(pointer(sampler), 77)
            with pytest.raises(OffPathError, match="id 77 "):
                use()
        assert sampler.link.path == ()


def test_a_chain_of_a_moved_cursor_goes_back_to_its_position():
    cursor = trie_of(ACTIONS).cursor()
    cursor.accept(100)
    row = row_of(_200=5.0)
    with chain(Link(cursor, eog=[END])) as sampler:
        for _ in range(2):
            assert sampler.sample_row(row) == 101
            assert (sampler.link.name, sampler.link.path) == ("THINK", (100, 101))
            sampler.reset()
        with sampler.clone() as copy:
            copy.sample_row(row)
            copy.reset()
            assert copy.link.path == (100,)


def test_chains_end_and_are_cloned():
    link = link_of(ACTIONS, mode=1)
    sampler = chain(link, seed=1)
    sampler.accept(100)
    copy = sampler.clone()
    sampler.close()
    sampler.close()
    assert not link.alive
    assert sampler.closed
    for use in (
        lambda: sampler.sample_row(row_of()),
        lambda: sampler.accept(101),
        lambda: sampler.pointer,
        sampler.check,
        sampler.reset,
        sampler.clone,
    ):
        with pytest.raises(Closed):
            use()
    assert copy.sample_row(row_of()) == 101
    assert copy.link.name == "THINK"
    assert type(copy) is type(sampler)
    assert isinstance(copy.link, Link)


def test_the_row_must_be_that_of_the_vocabulary():
    with chain(link_of(ACTIONS)) as sampler:
        for n in (0, 999, 1001):
            with pytest.raises(InvalidArgument):
                sampler.sample_row(np.zeros(n, np.float32))
        with pytest.raises(ValueError):
            sampler.sample_row(np.zeros(1000, np.float64))


def test_after_the_choice_only_the_end():
    with chain(link_of({"a": [5]}, mode=1), seed=1) as sampler:
        row = row_of(_9=50.0)
        assert [sampler.sample_row(row) for _ in range(3)] == [5, END, END]
    with chain(link_of({"a": [5]}, mode=1, after="free"), seed=1) as sampler:
        assert [sampler.sample_row(row) for _ in range(3)] == [5, 9, 9]


# Threads


def test_two_threads_with_chains_of_their_own_on_one_trie():
    """The callbacks run without the GIL: ctypes lets go of it."""
    rng = np.random.default_rng(3)
    n_vocab, n = 20_000, 200
    leaves = {f"c{i}": rng.integers(4, n_vocab, 6).tolist() for i in range(n)}
    trie = trie_of(leaves, n_vocab)
    rows = rng.standard_normal((20, n_vocab)).astype(np.float32)
    names: dict[int, list[str]] = {}

    def expected(seed):
        cursor = trie.cursor()
        out = []
        for k in range(40):
            row = rows[(seed + k) % len(rows)]
            token = cursor.argmax(row)
            cursor.accept(token)
            if cursor.done:
                out.append(cursor.name)
                cursor.reset()
        return out

    def work(seed):
        out = []
        with chain(Link(trie, eog=[END])) as sampler:
            for k in range(40):
                row = rows[(seed + k) % len(rows)]
                c = Candidates([])
                data = np.zeros(n_vocab, [("id", "i4"), ("logit", "f4"), ("p", "f4")])
                data["id"], data["logit"] = np.arange(n_vocab), row
                c.array.data = data.ctypes.data_as(L.llama_token_data_p)
                c.array.size = n_vocab
                token = c.apply(sampler).token
                L.llama_sampler_accept(pointer(sampler), token)
                if sampler.link.done:
                    out.append(sampler.link.name)
                    sampler.reset()
        names[seed] = out

    threads = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == {s: expected(s) for s in range(8)}


def test_links_may_be_freed_in_other_threads():
    """The last reference to a trie is given back by whoever holds the GIL."""
    trie = trie_of(ACTIONS)
    link = Link(trie, eog=[END])
    outer = new_chain()
    link.add_to(outer)
    copies = [L.llama_sampler_clone(outer) for _ in range(50)]
    link.close()
    threads = [
        threading.Thread(target=L.llama_sampler_free, args=(c,))
        for c in (*copies, outer)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert address(outer)
