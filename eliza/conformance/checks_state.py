"""Saved state: of a sequence, and of a session in a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eliza._trie import Trie
from eliza.conformance.rules import rule
from eliza.conformance.subject import held, require
from eliza.errors import BundleError, InvalidArgument

if TYPE_CHECKING:
    from eliza.conformance.subject import Subject


@rule("state.back", needs="save")
def back(s: Subject) -> None:
    """A restored state goes on as directly after saving; rows are not part of it."""
    ids = s.ids(9)
    sequence = s.grown(ids)
    state = sequence.save()
    require(isinstance(state, bytes), f"save gave a {type(state).__name__}")
    s.goes_on(sequence, ids, "after save")
    sequence.decode(s.ids(5, 1))
    for _ in range(2):
        sequence.restore(state, len(ids))
        held(sequence, len(ids), "after restore")
        for read in (sequence.logits, sequence.logits_window):
            with s.refused(InvalidArgument, f"{read.__name__}(0) after restore"):
                read(0)
        s.goes_on(sequence, ids, "after restore")


@rule("state.elsewhere", needs="save")
def elsewhere(s: Subject) -> None:
    """A state goes into other sequences and into another backend of the same model, and
    the one it came from goes on by itself.
    """
    ids = s.ids(9)
    sequence, other = s.grown(ids), s.grown(s.ids(3, 1))
    state = sequence.save()
    other.restore(state, len(ids))
    sequence.decode(s.ids(2, 2))
    s.goes_on(other, ids, "a second sequence")
    s.goes_on(sequence, [*ids, *s.ids(2, 2)], "the first sequence")
    sequence.close()
    third = s.open()
    third.restore(state, len(ids))
    s.goes_on(third, ids, "a sequence opened after the first was closed")
    beyond = s.open(s.fresh())
    beyond.restore(state, len(ids))
    s.goes_on(beyond, ids, "a sequence of another backend")


@rule("state.any-order", needs="save")
def any_order(s: Subject) -> None:
    """Long and short states, and one of a single id, come in any order (FC-087)."""
    histories = [s.ids(min(60, s.long()), 1), s.ids(3, 2), s.ids(1, 3)]
    states = []
    for ids in histories:
        sequence = s.grown(ids)
        states.append(sequence.save())
        sequence.close()
    sequence = s.open()
    for which in (0, 1, 0, 1, 1, 2, 0, 2, 2, 1):
        ids = histories[which]
        sequence.restore(states[which], len(ids))
        s.goes_on(sequence, ids, f"a state of {len(ids)} ids")


@rule("state.cut", needs="save")
def cut(s: Subject) -> None:
    """A restored timeline can be cut and saved like any other, and above a tree."""
    ids = s.ids(9)
    sequence = s.grown(ids)
    state = sequence.save()
    if s.backend.capabilities.tree:
        sequence.decode_tree(s.ids(1, 1), [-1])
        state = sequence.save()  # without the tree
        sequence.decode_tree(s.ids(1, 2), [0])
    sequence.restore(state, len(ids))
    s.goes_on(sequence, ids, "a state restored where a tree was")
    sequence.restore(state, len(ids))
    keep = 4 if s.can_truncate else 0
    sequence.truncate(keep)
    s.goes_on(sequence, ids[:keep], "cut after restore")
    again = sequence.save()
    n = sequence.position
    sequence.truncate(0)
    sequence.restore(again, n)
    s.goes_on(sequence, [*ids[:keep], *s.ids(1, keep)], "saved after restore")


def leaves_of(s: Subject) -> tuple[list[int], list[int]]:
    """Return two choices that part at their third id."""
    a, b, c, d, e = s.pool[:5]
    return [a, b, c, d], [a, b, d, e]


@rule("state.slot", needs="slot")
def slot(s: Subject) -> None:
    """A session that goes on from a slot, in this session or another, does what the
    uninterrupted one does.
    """
    path = s.folder() / "slot"
    session = s.session()
    session.prefill(s.ids(6))
    first = s.free(session, 3, "before the slot")
    session.save_slot(path)
    history = session.history
    s.free(session, 3, "after the slot")
    for target in (s.session(), session):
        for _ in range(2):  # twice from one file
            target.restore_slot(path)
            require(target.history == history, "a restored session has other ids")
            require(list(target.ids) == first, "a restored session generated other ids")
            s.free(target, 4, "a restored session")


@rule("state.slot-draws", needs="slot")
def slot_draws(s: Subject) -> None:
    """The state of the generator is part of a slot (FC-091)."""
    path = s.folder() / "slot"

    def drawn(ids: list[int], n: int) -> list[int]:
        session = s.session(temperature=1.0, seed=7)
        session.prefill(s.ids(6))
        while len(session.history) < 6 + n and not session.next().final:
            pass
        if not ids:
            session.save_slot(path)
            session.close()
            session = s.session(temperature=1.0, seed=8)
            session.restore_slot(path)
            while len(session.history) < 14 and not session.next().final:
                pass
        return list(session.history)

    whole = drawn([0], 8)
    parted = drawn([], 4)
    # The first draws come from equal rows; later ones follow rows that may be rounded
    # otherwise, and one draw of another id changes all that follow.
    n = len(whole) if s.exact else 10
    require(
        parted[:n] == whole[:n],
        f"drawn after restore: {parted[6:n]}, and without it: {whole[6:n]}",
    )


@rule("state.slot-choices", needs="slot")
def slot_choices(s: Subject) -> None:
    """A slot taken inside a choice goes on inside it; other choices are refused."""
    path = s.folder() / "slot"
    one, two = leaves_of(s)
    trie = Trie.from_tokens({"one": one, "two": two}, n_vocab=s.n_vocab)
    session = s.session()
    session.prefill(s.ids(6))
    session.set_token_trie(trie)
    session.next()  # the forced beginning
    session.save_slot(path)
    expected = list(session)
    other = s.session()
    with s.refused(InvalidArgument, "a slot with choices, into a session without"):
        other.restore_slot(path)
    other.set_token_trie(Trie.from_tokens({"one": one}, n_vocab=s.n_vocab))
    with s.refused(InvalidArgument, "a slot with choices, into one with others"):
        other.restore_slot(path)
    other.set_token_trie(trie)
    other.restore_slot(path)
    require(other.ids == tuple(one[:2]), "the beginning of the choice was lost")
    list(other)
    allowed = [tuple(one), tuple(two)]
    require(other.ids in allowed, f"{other.ids} is no choice")
    if s.exact:
        require(other.ids == session.ids, f"{other.ids}, and without it {session.ids}")
        require(expected[-1].final, "the choice did not end")


@rule("state.slot-damaged", needs="slot")
def slot_damaged(s: Subject) -> None:
    """A damaged slot is refused, and the session is as it was (FC-088)."""
    path = s.folder() / "slot"
    session = s.session()
    session.prefill(s.ids(6))
    session.save_slot(path)
    data = path.read_bytes()
    for what, damaged in (
        ("cut by one byte", data[:-1]),
        ("cut in the middle", data[: len(data) // 2]),
        ("empty", b""),
        ("a byte longer", data + b"\0"),
        ("a bit of its end flipped", data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]),
    ):
        path.write_bytes(damaged)
        with s.refused(BundleError, f"a slot, {what}"):
            session.restore_slot(path)
        require(list(session.history) == s.ids(6), f"a slot, {what}, changed the ids")
    s.free(session, 3, "after damaged slots")
