"""A runtime that cannot cut back loses its timeline with a failed decode (DESIGN 8)."""

import pytest

from eliza import Model, Trie
from eliza.testing import ScriptedBackend, ScriptedSequence
from support import hashed, plain_vocab


class Forgetful(ScriptedSequence):
    """Is empty after a decode that failed, as the contract permits."""

    def _append(self, kind, ids):
        try:
            super()._append(kind, ids)
        except RuntimeError:
            self._history = ()
            raise


@pytest.fixture
def failing():
    """Return a session of it, and a list: while that has items, decodes fail."""
    faults = []

    def logits(history):
        if faults:
            raise RuntimeError("the runtime broke")
        return hashed(3, 64)(history)

    backend = ScriptedBackend(plain_vocab(), logits, truncate=False, tree=False)
    plain = backend.open

    def open_():
        sequence = plain()
        sequence.__class__ = Forgetful
        return sequence

    backend.open = open_
    return Model(backend).open(), faults


def test_ids_that_waited_go_with_those_that_were_lost(failing):
    session, faults = failing
    session.prefill([4, 5, 6])
    assert session.next().ids  # it waits to be decoded
    faults.append(1)
    with pytest.raises(RuntimeError) as caught:
        session.next()
    assert "empty now" in "".join(caught.value.__notes__)
    assert session.history == session.ids == ()
    faults.clear()
    session.prefill([7, 8])
    assert session.history == (7, 8)
    assert session.row().tolist() == hashed(3, 64)((7, 8)).tolist()


@pytest.mark.parametrize("on_frontier", [None, lambda frontier: None])
def test_a_choice_begins_anew(failing, on_frontier):
    session, faults = failing
    trie = Trie.from_tokens({"a": [10, 11, 12], "b": [10, 13, 14]}, n_vocab=64)
    session.prefill([4, 5, 6])
    session.set_token_trie(trie)
    assert session.next().ids == (10,)
    session.timeline.append([10])
    session._generation.pending.clear()
    faults.append(1)
    with pytest.raises(RuntimeError):
        session.prefill([7], on_frontier)
    faults.clear()
    assert session.history == session.ids == ()
    session.prefill([4, 5, 6])
    list(session)
    assert session.ids in ((10, 11, 12), (10, 13, 14))
