"""A runtime that cannot cut back may be empty after a failed decode (DESIGN 8).

Nothing is lost above it: the session computes again what the runtime has forgotten.
"""

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


def test_free_text_goes_on_where_it_was(failing):
    session, faults = failing
    session.prefill([4, 5, 6])
    first = session.next().ids  # it waits to be decoded
    faults.append(1)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            session.next()
        assert session.history == (4, 5, 6, *first)
    faults.clear()
    second = session.next().ids
    row = hashed(3, 64)((4, 5, 6, *first))
    assert second == (int(row.argmax()),)


@pytest.mark.parametrize("on_frontier", [None, lambda frontier: None])
def test_a_choice_goes_on_where_it_was(failing, on_frontier):
    session, faults = failing
    trie = Trie.from_tokens({"a": [10, 11, 12], "b": [10, 13, 14]}, n_vocab=64)
    session.prefill([4, 5, 6])
    session.set_token_trie(trie)
    assert session.next().ids == (10,)
    faults.append(1)
    with pytest.raises(RuntimeError):
        session.prefill([7], on_frontier)
    assert session.history == (4, 5, 6, 10)
    faults.clear()
    list(session)
    assert session.ids in ((10, 11, 12), (10, 13, 14))
