"""Walking a trie: the examples, the messages, and the field cases of the cursor."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from eliza import State, Trie
from eliza._probe import copy_rounds, walk_rounds
from eliza.errors import (
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    OffPathError,
)

V = 64
END = 2


def trie_of(*sequences, n_vocab=V, exits=None):
    leaves = {"-".join(map(str, ids)): ids for ids in sequences}
    return Trie.from_tokens(leaves, n_vocab=n_vocab, exits=exits)


def row_of(logits=(), n=V):
    row = np.zeros(n, np.float32)
    for token, value in dict(logits).items():
        row[token] = value
    return row


def step(cursor, row):
    cursor.accept(cursor.argmax(row))
    return cursor.path[-1]


def test_fc001_the_longer_choice_can_be_reached():
    trie = trie_of([10], [10, 11], exits=[END])
    for second, path in (({11: 5, 2: 1}, (10, 11)), ({11: 1, 2: 5}, (10, 2))):
        cursor = trie.cursor()
        assert step(cursor, row_of()) == 10
        assert cursor.allowed().tolist() == [END, 11]
        assert cursor.forced().tolist() == []
        assert not cursor.done
        assert cursor.completes().tolist() == [0, 1]
        step(cursor, row_of(second))
        assert cursor.path == path
        assert cursor.done
        assert trie.tokens(cursor.leaf) == tuple(t for t in path if t != END)


def test_fc002_nothing_follows_a_complete_choice():
    cursor = trie_of([9], [12], [13, 14]).cursor()
    cursor.accept(13)
    cursor.accept(14)
    assert cursor.done
    assert cursor.state is State.DONE
    assert cursor.name == "13-14"
    assert cursor.allowed().tolist() == []
    assert cursor.completes().tolist() == []
    assert cursor.forced().tolist() == []
    for token in (15, END, 14):
        with pytest.raises(OffPathError, match=r"\(13, 14\): the choice is complete"):
            cursor.accept(token)
    row = row_of({15: 100})
    for kernel in (cursor.argmax, cursor.mask, cursor.logprobs):
        with pytest.raises(NoCandidateError, match="complete"):
            kernel(row)
    assert row[15] == 100
    assert cursor.path == (13, 14)


def test_fc004_nested_choices_by_their_probabilities():
    """Drawing from `logprobs` gives all four choices, each about a quarter."""
    trie = trie_of([7], [7, 8], [7, 8, 9], [7, 9], exits=[END])
    after = {
        (): row_of({7: 3}),
        (7,): row_of({END: np.log(0.25), 8: np.log(0.5), 9: np.log(0.25)}),
        (7, 8): row_of(),
    }
    counts = np.zeros(4)
    for seed in range(4000):
        rng = np.random.default_rng(seed)
        cursor = trie.cursor()
        while not cursor.done:
            p = np.exp(cursor.logprobs(after[cursor.path]))
            cursor.accept(rng.choice(cursor.allowed(), p=p))
        counts[cursor.leaf] += 1
    assert np.abs(counts / 4000 - 0.25).max() < 0.03


def test_fc013_another_split_is_refused_and_the_position_stays():
    """April = A p ril, August = A ug ust; the ids of r and ri lead nowhere."""
    a, p, r, ri, ril, ug, ust = 10, 11, 12, 13, 14, 15, 16
    cursor = trie_of([a, p, ril], [a, ug, ust]).cursor()
    cursor.accept(a)
    cursor.accept(p)
    assert cursor.allowed().tolist() == [ril]
    for token in (r, ri):
        with pytest.raises(OffPathError, match=rf"id {token} .*\(10, 11\).*: 14$"):
            cursor.accept(token)
        assert cursor.path == (a, p)
        assert cursor.allowed().tolist() == [ril]
    cursor.accept(ril)
    assert cursor.name == "10-11-14"


def test_fc016_no_leaf_allowed():
    trie = trie_of([10, 11], [20])
    for allow in ([], np.zeros(2, bool), np.zeros(0, int)):
        with pytest.raises(InvalidArgument, match="permits none of the 2 leaves"):
            trie.cursor(allow=allow)


def test_fc019_all_allowed_at_minus_infinity():
    cursor = trie_of([4], [5], n_vocab=8).cursor()
    row = np.ones(8, np.float32)
    row[4:6] = -np.inf
    for kernel in (cursor.argmax, cursor.logprobs):
        with pytest.raises(NoCandidateError, match=r"NaN or -inf: 4, 5"):
            kernel(row)
    assert cursor.path == ()


def test_fc020_leaving_the_path_is_an_error():
    cursor = trie_of([2, 3, 6], n_vocab=16).cursor()
    cursor.accept(2)
    with pytest.raises(OffPathError, match=r"id 7 is not allowed after \(2\)"):
        cursor.accept(7)
    assert cursor.path == (2,)
    assert cursor.allowed().tolist() == [3]
    assert cursor.argmax(row_of({9: 5}, 16)) == 3


@pytest.mark.parametrize("logits", [{3: -1e30, 5: 3e38}, {3: -3.4e38, 5: 3.4e38}])
def test_fc022_forbidden_ids_are_at_minus_infinity(logits):
    cursor = trie_of([3], n_vocab=8).cursor()
    row = row_of(logits, 8)
    assert cursor.argmax(row) == 3
    cursor.mask(row)
    row[5] += 1e9  # whatever is added later
    assert row.argmax() == 3
    assert row[3] == np.float32(logits[3])
    assert np.isneginf(np.delete(row, 3)).all()


@pytest.mark.parametrize(("n_vocab", "n"), [(151_669, 151_936), (32, 40)])
def test_fc031_the_padding_is_masked(n_vocab, n):
    cursor = trie_of([5], n_vocab=n_vocab).cursor()
    row = row_of({n - 1: 100}, n)
    assert cursor.argmax(row) == 5
    assert cursor.logprobs(row).tolist() == [0]
    whole = cursor.logprobs(row, whole_row=True)
    np.testing.assert_allclose(whole, [-np.log(n_vocab)], atol=1e-5)
    cursor.mask(row)
    assert np.flatnonzero(row > -np.inf).tolist() == [5]


@pytest.mark.parametrize("bad", [-1, V, 2**31 - 1, 2**40, 2**64])
def test_fc037_ids_outside_the_vocabulary(bad):
    cursor = trie_of([10, 11]).cursor()
    cursor.accept(10)
    with pytest.raises(InvalidArgument, match=rf"id {bad} is outside \[0, 64\)"):
        cursor.accept(bad)
    assert cursor.path == (10,)
    cursor.accept(11)
    assert cursor.done


@pytest.mark.parametrize("bad", [True, 10.0, "10", None, [10]])
def test_fc037_not_an_id(bad):
    cursor = trie_of([10, 11]).cursor()
    with pytest.raises(InvalidType, match="accept: an id must be an int"):
        cursor.accept(bad)
    assert cursor.path == ()
    cursor.accept(np.int64(10))
    assert cursor.path == (10,)


def test_fc042_a_constraint_works_again():
    trie = trie_of([10, 11], [20, 21])
    row = row_of({20: 1})
    for aborted in (False, False, False, True):
        cursor = trie.cursor()
        assert cursor.state is State.ARMED
        step(cursor, row)
        if aborted:
            cursor.reset()
            assert cursor.state is State.ARMED
            step(cursor, row)
        assert cursor.state is State.INSIDE
        step(cursor, row)
        assert cursor.path == (20, 21)


def test_fc043_cursors_do_not_share_a_position():
    trie = trie_of([10, 11], [20, 21])
    one, two = trie.cursor(), trie.cursor()
    one.accept(10)
    assert two.allowed().tolist() == [10, 20]
    two.accept(20)
    assert one.allowed().tolist() == [11]
    one.accept(11)
    assert two.allowed().tolist() == [21]
    two.accept(21)
    assert (one.name, two.name) == ("10-11", "20-21")


def test_a_copy_goes_its_own_way():
    cursor = trie_of([10, 11, 12], [10, 21]).cursor()
    cursor.accept(10)
    other = cursor.copy()
    other.accept(21)
    assert other.done
    assert cursor.path == (10,)
    cursor.accept(11)
    assert other.path == (10, 21)
    other.rollback(2)
    assert cursor.path == (10, 11)
    assert other.state is State.ARMED


def test_fc049_the_whole_path_counts():
    trie = trie_of([2, 3, 6, 47], [47, 3, 9])
    cursor = trie.cursor()
    cursor.accept(2)
    cursor.accept(3)
    assert cursor.allowed().tolist() == [6]
    with pytest.raises(OffPathError):
        cursor.accept(9)
    cursor.reset()
    cursor.accept(47)
    cursor.accept(3)
    assert cursor.allowed().tolist() == [9]


def test_fc065_the_end_is_not_allowed_inside():
    cursor = trie_of([10, 11], exits=[END]).cursor()
    row = row_of({END: 100})
    for token in (10, 11):
        assert cursor.allowed().tolist() == [token]
        with pytest.raises(OffPathError):
            cursor.accept(END)
        masked = row.copy()
        cursor.mask(masked)
        assert masked[END] == -np.inf
        assert step(cursor, row) == token
    assert cursor.done


def test_fc075_one_character_in_several_tokens():
    cursor = trie_of([16, 17, 18, 19], [16, 17, 18, 20], n_vocab=32).cursor()
    assert cursor.forced().tolist() == [16, 17, 18]
    for token in (16, 17, 18):
        cursor.accept(token)
    assert cursor.forced().tolist() == []
    assert cursor.allowed().tolist() == [19, 20]
    step(cursor, row_of({20: 5, 19: 1}, 32))
    assert cursor.name == "16-17-18-20"


def test_fc128_ties_go_to_the_lowest_id():
    row = np.ones(512, np.float32)
    for ids in ([5, 256, 300], [300, 5, 256], [256, 300, 5]):
        assert trie_of(*([i] for i in ids), n_vocab=512).cursor().argmax(row) == 5


def test_a_trie_that_needs_exits():
    trie = Trie.from_tokens({"go": [7], "go on": [7, 8], "no": [9]}, n_vocab=V)
    assert trie.needs_exits
    with pytest.raises(InvalidArgument, match="leaf 'go' is the beginning of other"):
        trie.cursor()
    for _ in range(2):  # a check that failed is made again
        with pytest.raises(InvalidArgument, match="has no exit id"):
            trie.cursor(exits=[])
    cursor = trie.cursor(exits=[END])
    cursor.accept(7)
    assert cursor.allowed().tolist() == [END, 8]
    with pytest.raises(InvalidArgument, match="has no exit id"):
        trie.cursor()
    # Whether they are needed depends on what is allowed.
    for allow, path in ((["go", "no"], [7]), (["go on"], [7, 8])):
        cursor = trie.cursor(allow=allow)
        for token in path:
            assert not cursor.done
            cursor.accept(token)
        assert cursor.done
        assert cursor.name == allow[0]
    with pytest.raises(InvalidArgument, match="leaf 'go' is the beginning of other"):
        trie.cursor(allow=["go", "go on"])


def test_an_exit_that_also_goes_on():
    leaves = {"go": [7], "go on": [7, 8, 1], "go off": [7, 8, 3], "go up": [7, 9]}
    message = "exit id 8 of leaf 'go' also leads on to leaf 'go on'"
    trie = Trie.from_tokens(leaves, n_vocab=V)
    with pytest.raises(InvalidArgument, match=message):
        trie.cursor(exits=[2, 8])
    own = Trie.from_tokens(leaves, n_vocab=V, exits={"go": [8]})
    with pytest.raises(InvalidArgument, match=message):
        own.cursor()
    with pytest.raises(InvalidArgument, match="leads on to leaf 'go off'"):
        own.cursor(allow=["go", "go off"])
    # Without those that go on by 8 it is an exit like any other.
    cursor = own.cursor(allow=["go", "go up"])
    cursor.accept(7)
    assert cursor.allowed().tolist() == [8, 9]
    cursor.accept(8)
    assert cursor.name == "go"
    assert cursor.path == (7, 8)


def test_messages_without_names():
    trie = Trie.from_arrays([7, 7, 8], [0, 1, 3], n_vocab=V)
    with pytest.raises(InvalidArgument, match="leaf 0 is the beginning"):
        trie.cursor()
    cursor = trie.cursor(exits=[2])
    cursor.accept(7)
    cursor.accept(2)
    assert (cursor.leaf, cursor.name, cursor.done) == (0, None, True)


def test_own_and_given_exits_are_one_set():
    trie = trie_of([7], [7, 20], exits=[5, 30])
    cursor = trie.cursor(exits=(30, 2, 40, 2))
    cursor.accept(7)
    assert cursor.allowed().tolist() == [2, 5, 20, 30, 40]
    assert cursor.completes().tolist() == [0, 0, 1, 0, 0]
    assert cursor.leaf_range == (0, 2)
    cursor.accept(30)
    assert cursor.leaf_range == (0, 1)
    assert cursor.remaining() == 1
    assert cursor.depth == 2
    cursor.rollback()
    assert cursor.path == (7,)
    assert cursor.remaining() == 2


def test_exits_as_a_set_or_none():
    trie = trie_of([7], [7, 20])
    for exits in ({2, 3}, frozenset({2, 3}), np.array([3, 2]), iter([2, 3])):
        cursor = trie.cursor(exits=exits)
        cursor.accept(7)
        assert cursor.allowed().tolist() == [2, 3, 20]
    with pytest.raises(InvalidArgument, match="has no exit id"):
        trie.cursor(exits=None)
    with pytest.raises(InvalidArgument, match=r"exits \[0\]: id 64 is outside"):
        trie.cursor(exits=[V])
    with pytest.raises(InvalidType, match="exits: expected a sequence"):
        trie.cursor(exits=2)


def test_what_is_returned_is_the_callers():
    cursor = trie_of([10, 11, 12], [10, 11, 13]).cursor()
    allowed, forced = cursor.allowed(), cursor.forced()
    assert allowed.dtype == forced.dtype == np.int32
    allowed[:] = 0
    assert cursor.allowed().tolist() == [10]
    assert not forced.flags.writeable
    cursor.accept(10)
    assert forced.tolist() == [10, 11]


@pytest.mark.parametrize(
    ("n", "kind", "message"),
    [
        (3, InvalidArgument, r"3 is outside \[0, 2\]"),
        (-1, InvalidArgument, r"-1 is outside \[0, 2\]"),
        (2**70, InvalidArgument, "is outside"),
        (True, InvalidType, "n must be an int, got bool"),
        (1.0, InvalidType, "n must be an int, got float"),
        (None, InvalidType, "n must be an int, got NoneType"),
    ],
)
def test_rollback_is_checked(n, kind, message):
    cursor = trie_of([10, 11, 12]).cursor()
    cursor.accept(10)
    cursor.accept(11)
    with pytest.raises(kind, match=message):
        cursor.rollback(n)
    assert cursor.path == (10, 11)
    cursor.rollback(0)
    assert cursor.path == (10, 11)
    cursor.rollback(np.int8(2))
    assert cursor.path == ()


def test_long_lists_are_cut_in_messages():
    cursor = trie_of(*([i] for i in range(10, 40))).cursor()
    with pytest.raises(
        OffPathError, match=r"at the start; allowed: 10, .*17, ... \(30 in all\)"
    ):
        cursor.accept(9)


def test_many_threads_share_a_trie():
    """Eight threads, one trie, one subset, a cursor each."""
    rng = np.random.default_rng(0)
    table = np.unique(rng.integers(0, 6, (500, 5)), axis=0)
    trie = Trie.from_arrays(table.reshape(-1), np.arange(len(table) + 1) * 5, n_vocab=V)
    subset = trie.subset(np.arange(0, len(table), 3))
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(300):
            cursor = trie.cursor(allow=subset, exits=[int(rng.integers(50, 60))])
            while not cursor.done:
                row = rng.random(V, np.float32)
                allowed = cursor.allowed()
                best = cursor.argmax(row)
                if best != allowed[row[allowed].argmax()]:
                    wrong.append((cursor.path, best))
                cursor.accept(best)
            if cursor.leaf % 3 or trie.tokens(cursor.leaf) != cursor.path:
                wrong.append(cursor.path)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("back", ["one", "all", "copy"])
def test_rounds_that_are_timed_end_where_they_start(back):
    """What bench/cursor.py times accepts what it says, and goes all the way back."""
    trie = Trie.from_tokens({"a": [1, 2, 3], "b": [1, 2, 4, 5]}, n_vocab=8)
    cursor = trie.cursor()
    cursor.accept(1)
    assert walk_rounds(cursor, [2, 4, 5], 7, back) == 21
    assert cursor.path == (1,)
    assert copy_rounds(cursor, 5) == 1
    with pytest.raises(OffPathError, match="id 5"):
        walk_rounds(cursor, [2, 5], 1, back)
    with pytest.raises(InvalidArgument, match="'some'"):
        walk_rounds(cursor, [2], 1, "some")
