"""Every spelling of a set of texts, against an oracle that writes them all out."""

from __future__ import annotations

import copy
import threading
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eliza import (
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    NotSupported,
    OffPathError,
    State,
    Trie,
    Vocab,
)
from eliza._pieces import Pieces
from eliza.reference import Reference
from eliza.spelling import Spellings
from support import model_of, scripted
from t32 import BOS, END, PIECES, byte_pair, row, t32

EXIT = 0  # the first id of the generated vocabularies; it has no bytes


def ways(pieces, text):
    """Yield every sequence of ids whose bytes are the text."""
    todo = [((), text)]
    while todo:
        ids, rest = todo.pop()
        if not rest:
            yield ids
        for i, piece in enumerate(pieces):
            if piece and rest.startswith(piece):
                todo.append(((*ids, i), rest[len(piece) :]))


class Oracle:
    """Choices as sets of id sequences: slow, and plain to see through."""

    def __init__(self, pieces, names, lead=b"", suffix=b"", exits=(EXIT,)):
        self.pieces = pieces
        self.exits = set(exits)
        self.end = {name: len(lead + name.encode()) for name in names}
        self.name_of = {}
        self.onward = {}  # for each path the choices it may lead to, and the next ids
        for name in names:
            for ids in ways(pieces, lead + name.encode() + suffix):
                self.name_of[ids] = name
                for n in range(len(ids) + 1):
                    possible, following = self.onward.setdefault(
                        ids[:n], (set(), set())
                    )
                    possible.add(name)
                    following.update(ids[n : n + 1])
                assume(len(self.onward) < 5000)

    def unspelled(self):
        return set(self.end) - set(self.name_of.values())

    def possible(self, path):
        return self.onward[path][0]

    def may_exit(self, path):
        return path in self.name_of and len(self.possible(path)) > 1

    def name(self, path):
        """Return the choice that a path completes, or None."""
        if path and path[-1] in self.exits and self.may_exit(path[:-1]):
            return self.name_of[path[:-1]]
        possible = self.possible(path)
        size = sum(len(self.pieces[token]) for token in path)
        if len(possible) == 1 and size >= self.end[min(possible)]:
            return min(possible)
        return None

    def allowed(self, path):
        if self.name(path) is not None:
            return set()
        following = self.onward[path][1]
        return following | self.exits if self.may_exit(path) else following

    def forced(self, path):
        run = ()
        while len(only := self.allowed(path + run)) == 1 and not self.may_exit(
            path + run
        ):
            run += tuple(only)
        return run

    def points(self, most=100):
        """Return the paths that can come about, the empty one first."""
        todo = [()]
        for path in todo:
            if len(todo) < most:
                todo.extend((*path, token) for token in sorted(self.allowed(path)))
        return todo


def check_point(cursor, oracle, path):
    """Compare all that a cursor says at one point with the oracle."""
    allowed = sorted(oracle.allowed(path))
    assert cursor.path == path
    assert cursor.depth == len(path)
    assert cursor.allowed().dtype == np.int32
    assert cursor.allowed().tolist() == allowed
    assert cursor.name == oracle.name(path)
    assert cursor.done == (cursor.name is not None)
    assert cursor.state is (
        State.DONE if cursor.done else State.INSIDE if path else State.ARMED
    )
    if cursor.done:
        assert cursor.spellings.names[cursor.leaf] == cursor.name
        assert cursor.remaining() == 1
    else:
        assert cursor.leaf is None
        assert cursor.remaining() == len(oracle.possible(path))
    assert tuple(cursor.forced()) == oracle.forced(path)
    names = cursor.spellings.names
    completed = [None if i < 0 else names[i] for i in cursor.completes()]
    assert completed == [oracle.name((*path, token)) for token in allowed]
    for token in range(len(oracle.pieces)):
        other = cursor.copy()
        if token in allowed:
            other.accept(token)
            assert other.path == (*path, token)
        else:
            with pytest.raises(OffPathError, match=f"id {token} is not allowed"):
                other.accept(token)
            assert other.path == path
            assert other.allowed().tolist() == allowed


def walk(spellings, path, **options):
    cursor = spellings.cursor(**options)
    for token in path:
        cursor.accept(token)
    return cursor


@st.composite
def worlds(draw):
    """Draw pieces that overlap, and texts made from the same few bytes."""
    letters = draw(st.sampled_from(["ab", "abc", "aé"]))
    piece = st.text(letters, min_size=1, max_size=3).map(str.encode)
    if "é" in letters:
        piece = st.one_of(piece, st.sampled_from([b"\xc3", b"\xa9", b"a\xc3"]))
    pieces = [b"", *draw(st.lists(piece, min_size=1, max_size=8))]
    if draw(st.booleans()):  # all bytes: no text is out of reach
        pieces += sorted({bytes([byte]) for byte in letters.encode()})
    pieces.append(b"")  # an ordinary id without bytes
    text = st.text(letters, max_size=4)
    names = draw(st.lists(text.filter(bool), min_size=1, max_size=5, unique=True))
    lead = draw(st.sampled_from([b"", b"", b"a"]))
    suffix = draw(st.one_of(st.just(""), text)).encode()
    return pieces, names, lead, suffix


def build(world):
    pieces, names, lead, suffix = world
    return Spellings.from_texts(
        Pieces(pieces), names, lead=lead, suffix=suffix, exits=[EXIT]
    )


@settings(deadline=None)
@given(worlds(), st.data())
def test_as_the_oracle_says_at_every_point(world, data):
    pieces, names, lead, suffix = world
    oracle = Oracle(*world)
    if unspelled := oracle.unspelled():
        with pytest.raises(InvalidArgument, match="cannot be spelled") as caught:
            build(world)
        assert any(repr(name) in str(caught.value) for name in unspelled)
        names = [name for name in names if name not in unspelled]
        assume(names)
        oracle = Oracle(pieces, names, lead, suffix)
    spellings = build((pieces, data.draw(st.permutations(names)), lead, suffix))
    in_order = sorted(names, key=lambda name: name.encode() + suffix)
    assert spellings.names == tuple(in_order)
    assert len(spellings) == len(names)
    for path in oracle.points():
        check_point(walk(spellings, path), oracle, path)


@settings(deadline=None)
@given(worlds(), st.data())
def test_a_permitted_subset_is_the_set_of_those_alone(world, data):
    pieces, names, lead, suffix = world
    unspelled = Oracle(*world).unspelled()
    names = [name for name in names if name not in unspelled]
    assume(names)
    spellings = build((pieces, names, lead, suffix))
    some = data.draw(st.sets(st.sampled_from(names), min_size=1))
    mask = np.array([name in some for name in spellings.names])
    forms = [mask, np.flatnonzero(mask), sorted(some), spellings.subset(mask)]
    allow = data.draw(st.sampled_from(forms))
    oracle = Oracle(pieces, sorted(some), lead, suffix)
    for path in oracle.points(60):
        check_point(walk(spellings, path, allow=allow), oracle, path)


@settings(deadline=None)
@given(worlds())
def test_every_whole_spelling_is_a_way_to_its_choice(world):
    pieces, names, lead, _ = world
    oracle = Oracle(pieces, names, lead)
    assume(not oracle.unspelled())
    spellings = build((pieces, names, lead, b""))
    for ids, name in islice(oracle.name_of.items(), 100):
        cursor = walk(spellings, ids)
        if not cursor.done:
            cursor.accept(EXIT)
        assert cursor.name == name
        assert b"".join(pieces[i] for i in cursor.path) == lead + name.encode()


@settings(deadline=None)
@given(worlds(), st.data())
def test_taking_back_and_copies(world, data):
    oracle = Oracle(*world)
    assume(not oracle.unspelled())
    cursor, path = build(world).cursor(), ()
    for _ in range(12):
        step = data.draw(st.sampled_from(["accept", "accept", "rollback", "reset"]))
        before = cursor.copy()
        if step == "accept" and oracle.allowed(path):
            token = data.draw(st.sampled_from(sorted(oracle.allowed(path))))
            cursor.accept(token)
            after = (*path, token)
        elif step == "reset":
            cursor.reset()
            after = ()
        else:
            n = data.draw(st.integers(0, len(path)))
            cursor.rollback(n)
            after = path[: len(path) - n]
        assert before.path == path
        assert before.allowed().tolist() == sorted(oracle.allowed(path))
        path = after
        assert cursor.path == path
        assert cursor.name == oracle.name(path)
        assert cursor.allowed().tolist() == sorted(oracle.allowed(path))


logit = st.one_of(
    st.floats(-5, 5, width=32),
    st.sampled_from([0.0, float("nan"), float("inf"), -float("inf")]),
)


@settings(deadline=None)
@given(worlds(), st.data())
def test_kernels_as_of_a_set_with_these_ids(world, data):
    oracle = Oracle(*world)
    assume(not oracle.unspelled())
    path = data.draw(st.sampled_from(oracle.points(30)))
    assume(oracle.allowed(path))
    cursor = walk(build(world), path)
    width = len(world[0]) + data.draw(st.integers(0, 3))
    values = data.draw(st.lists(logit, min_size=width, max_size=width))
    logits = np.array(values, np.float32)
    # One leaf for each allowed id: a choice between them, and nothing else.
    alone = Reference({str(i): (i,) for i in oracle.allowed(path)})
    inside = [*map(float, logits[: len(world[0])])]
    best = alone.argmax((), inside)
    if best is None:
        for kernel in (cursor.argmax, cursor.logprobs):
            with pytest.raises(NoCandidateError, match="every allowed id"):
                kernel(logits)
    else:
        assert cursor.argmax(logits) == best
        for whole in (False, True):
            expected = alone.logprobs((), inside, whole)
            got = cursor.logprobs(logits, whole)
            assert got.tolist() == pytest.approx([*expected.values()], abs=1e-5)
    masked = logits.copy()
    cursor.mask(masked)
    np.testing.assert_array_equal(masked, np.array(alone.mask((), values), np.float32))
    bits = np.unpackbits(cursor.bitmask().view(np.uint8), bitorder="little")
    assert set(np.flatnonzero(bits)) == oracle.allowed(path)


# -- the field cases -------------------------------------------------------------------


def test_fc005_the_spaced_form_in_one_id_and_in_two():
    spellings = t32().trie([" Yes", " No"], spelling="all")
    cursor = spellings.cursor()
    assert cursor.allowed().tolist() == [11, 21]
    for path in ((11,), (21, 9), (21, 10)):
        assert walk(spellings, path).name == " Yes"
    assert walk(spellings, (21, 12)).name == " No"


def test_fc010_a_text_that_no_ids_spell():
    for names in (["Yes", "ok"], ["ok"]):
        with pytest.raises(InvalidArgument, match="'ok'"):
            t32().trie(names, spelling="all")
        with pytest.raises(InvalidArgument, match=r"'ok'.*no id goes on with b'ok'"):
            Spellings.from_texts(t32()._piece_trie, names)
    # Each letter is there, but no way leads through them.
    pieces = Pieces([b"ab", b"a", b"bc"])
    with pytest.raises(InvalidArgument, match=r"'abcb'.*after b'abc' with b'b'"):
        Spellings.from_texts(pieces, ["abc", "abcb"])


def test_fc010_the_unknown_id_spells_nothing():
    pieces = ["<unk>", "Y", "es", "k"]

    def encode(text, special):
        return [pieces.index(c) if c in pieces else 0 for c in text]

    vocab = Vocab.from_tokens(pieces, control=[0], encode=encode)
    with pytest.raises(InvalidArgument, match="'ok'"):
        vocab.trie(["ok"], spelling="all")
    with pytest.raises(InvalidArgument, match="'ok'"):
        Spellings.from_texts(vocab._piece_trie, ["ok"])


def test_fc011_two_ids_with_the_same_text():
    for logits, name in (
        ({10: 9, 12: 1}, "Yes"),
        ({9: 9, 12: 1}, "Yes"),
        ({9: 1, 12: 9}, "No"),
    ):
        cursor = t32().trie(["Yes", "No"], spelling="all").cursor()
        assert cursor.allowed().tolist() == [9, 10, 12]
        cursor.accept(cursor.argmax(np.array(row(logits), np.float32)))
        assert cursor.name == name
        model = model_of(scripted({(): logits}, 2), t32(), width=40)
        answer = model.choose("n", ["Yes", "No"], method="greedy", spelling="all")
        assert answer.value == name


def test_fc013_shorter_ids_lead_on():
    pieces = ["A", "p", "r", "ri", "ril", "il", "l", "ug", "ust"]
    vocab = Vocab.from_tokens(pieces)
    spellings = vocab.trie(["April", "August"], spelling="all")
    cursor = walk(spellings, (0, 1))
    assert cursor.allowed().tolist() == [2, 3, 4]
    cursor.accept(2)
    assert cursor.allowed().tolist() == [5]  # `i` is no piece
    assert cursor.forced().tolist() == [5]
    for path in ((0, 1, 2, 5), (0, 1, 3, 6), (0, 1, 4)):
        assert walk(spellings, path).name == "April"
    assert walk(spellings, (0,)).forced().tolist() == []
    assert walk(spellings, (0, 7)).forced().tolist() == [8]
    # The tokenizer's own spelling only: the other rule, with its error.
    own = vocab.trie(["April", "August"]).cursor()
    own.accept(0)
    own.accept(1)
    with pytest.raises(OffPathError):
        own.accept(2)
    assert own.allowed().tolist() == [4]


def test_fc124_long_pieces_and_none():
    vocab = t32()
    spaces = " " * 64
    spellings = vocab.trie([spaces + "A", spaces + " "], spelling="all")
    assert spellings.cursor().allowed().tolist() == [21, 22]
    for path in ((22, 4), (*[21] * 64, 4), (*[21] * 63, 8)):
        assert walk(spellings, path).name == spaces + "A"
    assert walk(spellings, (21, 22)).name == spaces + " "
    pieces = [b"", b"x" * 256, b"x", b""]
    spellings = Spellings.from_texts(Pieces(pieces), ["x" * 257])
    assert spellings.cursor().allowed().tolist() == [1, 2]
    assert walk(spellings, (2, 1)).done
    assert walk(spellings, (1, 2)).done


def test_fc071_special_ids_spell_nothing():
    spellings = t32().trie(["<|im_end|>"], spelling="all")
    assert spellings.cursor().forced().tolist() == [26, 27, 28, 27, 29]
    with pytest.raises(OffPathError, match="id 3 is not allowed at the start"):
        spellings.cursor().accept(3)


def test_fc001_fc002_the_end_of_a_choice():
    spellings = t32().trie(["A", "AB", "C"], spelling="all")
    cursor = walk(spellings, (4,))
    assert cursor.allowed().tolist() == [END, 5]
    assert cursor.forced().tolist() == []  # an exit is not forced
    assert walk(spellings, (4, END)).name == "A"
    assert walk(spellings, (4, 5)).name == "AB"
    done = walk(spellings, (6,))
    assert (done.name, done.state) == ("AB", State.DONE)
    assert done.allowed().tolist() == []
    for kernel in (done.argmax, done.mask, done.logprobs):
        with pytest.raises(NoCandidateError, match="the choice is complete"):
            kernel(np.zeros(40, np.float32))
    with pytest.raises(NoCandidateError, match="the choice is complete"):
        done.bitmask()
    # Without the longer one nothing has to end the shorter one.
    assert walk(spellings, (4,), allow=["A", "C"]).name == "A"


# -- where a text stands ---------------------------------------------------------------

QUOTED = ["</s>", "g", "o", "go", " on", 'o"', '"', '",', " ", "n", ","]


def test_an_id_may_reach_into_the_suffix():
    vocab = Vocab.from_tokens(QUOTED, eog=[0])
    spellings = vocab.trie(["go", "go on"], suffix='",', spelling="all")
    assert not spellings.needs_exits
    cursor = walk(spellings, (1,))
    assert cursor.allowed().tolist() == [2, 5]
    assert walk(spellings, (1, 5)).name == "go"
    cursor = walk(spellings, (3,))
    assert cursor.allowed().tolist() == [4, 6, 7, 8]
    assert walk(spellings, (3, 6)).name == walk(spellings, (3, 7)).name == "go"
    assert walk(spellings, (3, 4)).name == "go on"
    assert walk(spellings, (3, 8, 2, 9)).name == "go on"


def test_a_suffix_goes_on_until_it_tells_choices_apart():
    vocab = Vocab.from_tokens(QUOTED, eog=[0])
    spellings = vocab.trie(["go", 'go"'], suffix='",', spelling="all")
    cursor = walk(spellings, (3, 6))  # go"
    assert not cursor.done
    assert cursor.allowed().tolist() == [6, 7, 10]
    assert walk(spellings, (3, 6, 10)).name == "go"
    assert walk(spellings, (3, 7)).name == "go"
    assert walk(spellings, (3, 6, 6)).name == walk(spellings, (3, 6, 7)).name == 'go"'


def test_a_suffix_must_be_in_reach_too():
    # Without `,` by itself, nothing could be written after `go"`.
    vocab = Vocab.from_tokens(QUOTED[:-1], eog=[0])
    spellings = vocab.trie(["go", "n"], suffix='",', spelling="all")
    assert walk(spellings, (1,)).allowed().tolist() == [2]


def test_a_merge_across_the_border_to_the_prompt():
    vocab = byte_pair([(" ", "a"), (" a", "b"), (" ", "c")], " abcd")
    names = ["ab", "c"]
    placed = vocab.place("d ", names)
    spellings = vocab.respell(placed)
    assert placed.overlap == 1
    assert spellings.names == ("ab", "c")
    for leaf, name in enumerate(placed.trie.names):
        assert walk(spellings, placed.trie.tokens(leaf)).name == name
    space, a, b = (vocab.encode(x)[0] for x in " ab")
    assert walk(spellings, (space, a, b)).name == "ab"
    with pytest.raises(OffPathError):
        spellings.cursor().accept(a)


def test_a_tokenizer_that_puts_a_space_before_a_text():
    vocab = byte_pair([(" ", "a"), ("a", "b")], " abc", start=" ")
    assert vocab.text_start == b" "
    spellings = vocab.trie(["ab", "c"], spelling="all")
    for name in spellings.names:
        assert walk(spellings, vocab.encode(name)).name == name


# -- what is refused -------------------------------------------------------------------


def test_wrong_texts():
    pieces = Pieces([b"a", b"b"])
    assert Spellings.from_texts(pieces, ["a", "b", "a"]).names == ("a", "b")
    for names, error, message in (
        ([], InvalidArgument, "there are no texts"),
        (["a", ""], InvalidArgument, r"names\[1\] is the empty string"),
        (["a", 3], InvalidType, r"names\[1\]: a text is a str, got int"),
        ("ab", InvalidType, "names must be a sequence of str"),
        (["a", "\ud800"], InvalidArgument, "lone surrogate"),
    ):
        with pytest.raises(error, match=message):
            Spellings.from_texts(pieces, names)
    with pytest.raises(InvalidArgument, match="no id of the vocabulary stands for"):
        Pieces([b"", b""])
    with pytest.raises(InvalidArgument, match="spelling is 'every'; it is one of"):
        t32().trie(["A"], spelling="every")
    with pytest.raises(InvalidType, match=r"Vocab.trie\(\)"):
        Spellings()


def test_exits_that_are_missing_or_ambiguous():
    pieces = Pieces([b"", b"a", b"b"])
    spellings = Spellings.from_texts(pieces, ["a", "ab", "b"])
    assert spellings.needs_exits
    with pytest.raises(InvalidArgument, match="'a' is the beginning of other texts"):
        spellings.cursor()
    assert spellings.cursor(allow=["ab", "b"]).allowed().tolist() == [1, 2]
    with pytest.raises(InvalidArgument, match=r"exit id 2 of text 'a' .* text 'ab'"):
        spellings.cursor(exits=[0, 2])
    assert walk(spellings, (1, 0), exits=[0]).name == "a"
    assert walk(spellings, (1, 1), exits=[1]).name == "a"  # no text has `aa`
    with pytest.raises(InvalidArgument, match="id 3 is outside"):
        spellings.cursor(exits=[3])
    assert walk(spellings, (1, 0), exits=(i for i in [0])).path == (1, 0)


def test_what_only_ids_can_reach_needs_no_exit():
    # `ab` goes on from `a` as bytes, but no ids lead there: `a` is complete.
    spellings = Spellings.from_texts(Pieces([b"a", b"ab"]), ["a", "ab"])
    assert walk(spellings, (0,)).name == "a"
    assert walk(spellings, (1,)).name == "ab"


def test_an_error_changes_nothing():
    cursor = walk(t32().trie(["AB", "AC"], spelling="all"), (4,))
    for wrong, error in (
        (2, OffPathError),
        (9, OffPathError),
        (32, InvalidArgument),
        (-1, InvalidArgument),
        (True, InvalidType),
        (5.0, InvalidType),
        ("5", InvalidType),
    ):
        with pytest.raises(error):
            cursor.accept(wrong)
    for wrong in (-1, 2, 2**40, 0.5):
        with pytest.raises(InvalidArgument, match="rollback"):
            cursor.rollback(wrong)
    with pytest.raises(InvalidArgument, match="at least 32 long"):
        cursor.argmax(np.zeros(31, np.float32))
    with pytest.raises(NoCandidateError):
        cursor.argmax(np.full(40, -np.inf, np.float32))
    assert cursor.path == (4,)
    assert cursor.allowed().tolist() == [5, 7]
    cursor.accept(np.int64(5))
    assert cursor.name == "AB"
    with pytest.raises(OffPathError, match=r"after \(4, 5\): the choice is complete"):
        cursor.accept(5)


# -- size and threads ------------------------------------------------------------------


def test_long_texts_and_many():
    pieces = Pieces([b"", *(bytes([c]) for c in b"ab"), b"aa"])
    text = "ab" * 30_000
    cursor = Spellings.from_texts(pieces, [text]).cursor()
    run = cursor.forced()
    assert run.tolist() == [1, 2] * 30_000
    for token in run.tolist():
        cursor.accept(token)
    assert cursor.name == text
    cursor.rollback(59_999)
    assert cursor.path == (1,)

    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    names = sorted({"".join(rng.choice(syllables, 5)) for _ in range(10_000)})
    for letters in ("abdefgiklmnoprstu", ""):  # without them, not all is in reach
        pieces = [b"", *(x.encode() for x in [*letters, *syllables])]
        spellings = Spellings.from_texts(Pieces(pieces), names, exits=[0])
        vocab = Vocab.from_tokens(pieces)
        logits = rng.standard_normal((20, len(pieces))).astype(np.float32)
        mask = rng.random(len(names)) < 0.1
        for allow in (None, mask):
            cursor = spellings.cursor(allow=allow)
            for values in logits:
                if not cursor.done:
                    cursor.accept(cursor.argmax(values))
            assert vocab.decode(cursor.path).decode() == cursor.name
            assert allow is None or mask[cursor.leaf]


def test_threads_share_spellings():
    vocab = t32()
    spellings = vocab.trie(["A", "AB", "ABC", "Yes", "Maybe"], spelling="all")
    failures = []

    def run(seed):
        rng = np.random.default_rng(seed)
        for _ in range(300):
            cursor = spellings.cursor()
            while not cursor.done:
                cursor.accept(rng.choice(cursor.allowed()))
            if vocab.decode(cursor.path) != cursor.name.encode():
                failures.append(cursor.path)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_cursor_outlives_what_made_it():
    pieces = [*PIECES]
    vocab = Vocab.from_tokens(pieces, range(4), (END,), BOS)
    cursor = vocab.trie(["AB", "AC"], spelling="all").cursor(allow=["AC"], exits=[1])
    other = cursor.copy()
    del vocab, cursor
    assert other.allowed().tolist() == [4]
    assert other.forced().tolist() == [4, 7]
    with pytest.raises(TypeError):
        copy.deepcopy(other)


# -- choosing --------------------------------------------------------------------------


def spelled(table, **options):
    model = model_of(scripted(table, 2), t32(), width=40)
    return model.choose("n", method="greedy", spelling="all", **options)


def test_choose_by_other_spellings():
    letters = {(): {4: 9}, (4,): {5: 9}, (4, 5): {7: 9}}
    answer = spelled(letters, choices=["No", "ABC", "AC"])
    assert (answer.value, answer.index) == ("ABC", 1)
    assert answer.stats.decided == 2
    assert answer.stats.forced == 1
    assert answer.stats.forward_passes == 2
    assert answer.ranking is answer.probability is answer.margin is None
    # The same logits, one spelling: id 4 leads to `AC` only.
    model = model_of(scripted(letters, 2), t32(), width=40)
    own = model.choose("n", ["No", "ABC", "AC"], method="greedy")
    assert own.value == "AC"


def test_choose_with_suffix_allow_and_values():
    table = {(): {4: 9}, (4,): {23: 9, 5: 8, END: 10}}
    choices = {"A": 1, "AB": 2, "C": 3}
    answer = spelled(table, choices=choices, suffix='"')
    assert answer.value == 1
    answer = spelled(table, choices=choices)  # no suffix: the end id
    assert answer.value == 1
    assert answer.stats.decided == 2
    answer = spelled(table, choices=choices, allow=["AB", "C"])
    assert answer.value == 2
    assert answer.stats.forward_passes == 1
    answer = spelled({(): {7: 9}}, choices=["C", "A", "C"])
    assert (answer.value, answer.index) == ("C", 0)


def test_choose_logprob_is_that_of_the_ids_taken():
    answer = spelled({(): {10: 2.0, 9: 1.0}}, choices=["Yes", "No"])
    values = np.array([1.0, 2.0, 0.0])
    assert answer.logprob == pytest.approx(2.0 - np.log(np.exp(values).sum()))


def test_choose_refuses_what_is_not_defined():
    model = model_of(scripted({}, 2), t32(), width=40)
    with pytest.raises(NotSupported, match=r"method='exact'.*pass method='greedy'"):
        model.choose("n", ["Yes", "No"], spelling="all")
    for ranking in ("masked", "whole"):
        with pytest.raises(NotSupported, match=f"ranking='{ranking}'.*no ranking"):
            model.choose("n", ["Yes"], spelling="all", method="greedy", ranking=ranking)
    with pytest.raises(InvalidArgument, match="spelling is 'any'"):
        model.choose("n", ["Yes"], spelling="any", method="greedy")
    for choices in (
        [("Yes", [9]), ("No", [12])],
        Trie.from_tokens({"Yes": [9]}, n_vocab=32),
    ):
        with pytest.raises(InvalidArgument, match="choices given as text"):
            model.choose("n", choices, spelling="all", method="greedy")
    assert model.choose("n", ["Yes", "No"], spelling="canonical").value == "Yes"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["", '"', "A", "/"]))
def test_r1_whatever_the_logits_say_the_answer_is_a_choice(seed, suffix):
    rng = np.random.default_rng(seed)
    choices = ["A", "AB", "ABC", "Yes", " Yes", "Maybe", "🐈", "🐕", "A/", 'A"']
    vocab = t32()
    placed = vocab.place("n", choices, suffix)
    spellings = vocab.respell(placed, suffix)
    session = model_of(
        lambda history: rng.standard_normal(40).astype(np.float32), vocab, width=40
    ).open()
    session.prefill("n")
    cursor = spellings.cursor()
    session.set_constraint(cursor)
    text = "".join(step.text for step in session)
    assert cursor.name in choices
    assert text.startswith(cursor.name)
    assert (cursor.name + suffix).startswith(text)
    assert session.finish_reason == "choice"


def test_samples_follow_the_allowed_logits():
    rng = np.random.default_rng(5)
    vocab = t32()
    cursor = vocab.trie(["Yes", "No"], spelling="all").cursor()
    row = np.zeros(40, np.float32)
    row[12] = 1.0
    counts = {int(i): 0 for i in cursor.allowed()}
    for _ in range(4000):
        counts[cursor.sample(row, rng)] += 1
    weights = {i: np.exp(row[i]) for i in counts}
    total = sum(weights.values())
    for i, n in counts.items():
        assert abs(n / 4000 - weights[i] / total) < 0.04
    assert cursor.sample(row, rng, temperature=0) == 12
