"""Each of these runtimes has one fault, and the check that is named finds it."""

import contextlib

import numpy as np
import pytest

from eliza.backends.base import Capabilities
from eliza.conformance.scripted import scripted_backend
from eliza.errors import BackendError, NotSupported
from eliza.testing import ScriptedSequence
from faulty import faulty, found

FAULTS = []


def fault(check, **options):
    """Note which check finds a faulty sequence, in a backend with these options."""

    def note(kind):
        FAULTS.append(pytest.param(kind, check, options, id=kind.__name__))
        return kind

    return note


@fault("truncate.redo")
class IgnoresTruncate(ScriptedSequence):
    def truncate(self, n):
        self._rows = None


@fault("rows.end")
class KeepsRowsThatWereCut(ScriptedSequence):
    def truncate(self, n):
        rows = self._rows
        super().truncate(n)
        self._rows = rows


@fault("rows.single", head_rows=True)
class SortsTheIds(ScriptedSequence):
    def logits_of(self, ids, i=0):
        return super().logits_of(sorted(ids), i)


@fault("rows.single", head_rows=True)
class LastRowOnly(ScriptedSequence):
    def logits_of(self, ids, i=0):
        self.logits(i)
        return super().logits_of(ids, len(self._rows) - 1)


@fault("truncate.bounds")
class CutsFromTheEnd(ScriptedSequence):
    def truncate(self, n):
        super().truncate(n if n >= 0 else max(0, len(self._history) + n))


@fault("truncate.redo")
class RefusesWhatItDeclares(ScriptedSequence):
    def truncate(self, n):
        if 0 < n < self.position:
            raise NotSupported("not today")
        super().truncate(n)


@fault("decode.divided")
class RowsAreShifted(ScriptedSequence):
    def decode_many(self, ids):
        super().decode_many(ids)
        self._rows = np.roll(self._rows, 1, axis=0)


@fault("decode.divided")
class LosesTheFirstOfManyIds(ScriptedSequence):
    def decode(self, ids):
        super().decode(ids)
        if len(ids) > 20:
            self._history = self._history[1:]


@fault("decode.long")
class TurnsPiecesRound(ScriptedSequence):
    def decode(self, ids):
        if self.position and len(ids) > 16:
            ids = [*ids[16:], *ids[:16]]
        super().decode(ids)


@fault("truncate.trial")
class KeepsBatchesWhole(ScriptedSequence):
    begun = 0

    def decode_many(self, ids):
        self.begun = self.position
        super().decode_many(ids)

    def truncate(self, n):
        super().truncate(self.position if n > self.begun > 0 else n)


@fault("decode.divided")
class ReturnsTheRowBefore(ScriptedSequence):
    """A window that was read once is given again."""

    def logits(self, i=0):
        before, self.before = getattr(self, "before", None), super().logits(i)
        return self.before if before is None else before


@fault("decode.forms")
class KeepsTheCallersIds(ScriptedSequence):
    given = None

    def decode(self, ids):
        if self.given is not None:
            n = len(self._history) - len(self.given)
            self._history = (*self._history[:n], *map(int, self.given))
        super().decode(ids)
        self.given = ids


@fault("rows.form")
class GivesDoubles(ScriptedSequence):
    def logits_window(self, i=0):
        return super().logits_window(i).astype(np.float64)


@fault("rows.which")
class CountsRowsFromTheEnd(ScriptedSequence):
    def logits(self, i=0):
        return super().logits(i % len(self._rows) if self._rows is not None else i)


@fault("rows.copy-stays")
class GivesItsOwnRow(ScriptedSequence):
    def logits(self, i=0):
        super().logits(i)
        return self._rows[i]


@fault("rows.own")
class RowsAreTheBackends(ScriptedSequence):
    @property
    def _rows(self):
        return self._backend.__dict__.get("rows")

    @_rows.setter
    def _rows(self, rows):
        if rows is not None:
            self._backend.rows = rows


@fault("choices.exact")
@fault("tree.branches")
class TreeRowsAreSwapped(ScriptedSequence):
    def decode_tree(self, ids, parents):
        super().decode_tree(ids, parents)
        self._rows = self._rows[::-1]


@fault("tree.chain")
class TreeHasNoDepth(ScriptedSequence):
    def decode_tree(self, ids, parents):
        super().decode_tree(ids, [-1] * len(ids))


@fault("tree.siblings")
class SiblingsSeeEachOther(ScriptedSequence):
    def decode_tree(self, ids, parents):
        known = len(self._paths)
        flat = list(parents)
        for i in range(1, len(flat)):
            if flat[i] == flat[i - 1]:
                flat[i] = known + i - 1
        super().decode_tree(ids, flat)


@fault("tree.batches")
class NumbersEachBatchAnew(ScriptedSequence):
    def decode_tree(self, ids, parents):
        known = len(self._paths)
        super().decode_tree(ids, [p + known if p >= 0 else p for p in parents])


@fault("tree.cleared")
class TreeIsNotCleared(ScriptedSequence):
    def clear_tree(self):
        self._rows = None


@fault("tree.ended")
class TreeOutlivesDecode(ScriptedSequence):
    def decode(self, ids):
        paths = self._paths
        super().decode(ids)
        self._paths = paths


@fault("tree.bad")
class TakesAnyParent(ScriptedSequence):
    def decode_tree(self, ids, parents):
        top = len(self._paths)
        super().decode_tree(ids, [min(max(p, -1), top - 1) for p in parents])


@fault("tree.room")
class RoomIsTooSmall(ScriptedSequence):
    def decode_tree(self, ids, parents):
        if len(ids) > 20:
            raise BackendError("too many")
        super().decode_tree(ids, parents)


@fault("state.back")
class RestoreLosesTheLastId(ScriptedSequence):
    def restore(self, state, n):
        super().restore(state, n)
        self._history = self._history[:-1]


@fault("state.back")
class RestoreSwapsTheLastIds(ScriptedSequence):
    def restore(self, state, n):
        super().restore(state, n)
        if n > 1:
            self._history = (*self._history[:-2], *self._history[:-3:-1])


@fault("state.back")
class RestoreKeepsRows(ScriptedSequence):
    def restore(self, state, n):
        rows = self._rows
        super().restore(state, n)
        self._rows = rows


@fault("state.elsewhere")
class StateIsTheSequence(ScriptedSequence):
    """What was saved is no copy: it moves on with the sequence that it came from."""

    def save(self):
        saved = self._backend.__dict__.setdefault("saved", {})
        state = super().save()
        saved[state] = self
        return state

    def restore(self, state, n):
        super().restore(state, n)
        source = self._backend.__dict__.get("saved", {}).get(state)
        if source is not None and source is not self:
            self._history = source._history


@fault("state.any-order")
class RestoreNeedsALongerState(ScriptedSequence):
    def restore(self, state, n):
        if n < self.position:
            raise BackendError("assertion failed: kv_head + n <= kv_size")
        super().restore(state, n)


@fault("state.cut")
class SavesTheTree(ScriptedSequence):
    def save(self):
        if not self._paths:
            return super().save()
        history = self._history
        self._history = (*history, *self._paths[0])
        try:
            return super().save()
        finally:
            self._history = history

    def restore(self, state, n):
        super().restore(state, len(state) // 4)


@fault("limits.bad-ids")
class TakesAnyId(ScriptedSequence):
    def decode(self, ids):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            ids = [int(i) % self._backend.vocab.n_vocab for i in ids]
        super().decode(ids)


@fault("limits.bad-ids")
class RefusalCostsTheRows(ScriptedSequence):
    def decode(self, ids):
        self._rows = None
        super().decode(ids)


@fault("limits.rows", max_rows=8)
class MoreRowsThanItSays(ScriptedSequence):
    def _check_rows(self, n):
        pass


@fault("limits.overflow")
class NoOverflow(ScriptedSequence):
    def _check_room(self, n):
        pass


@fault("limits.overflow")
class OverflowIsAnotherError(ScriptedSequence):
    def _check_room(self, n):
        if n > self._backend.n_ctx:
            raise BackendError("decode returned 1")


@fault("limits.overflow")
class DecodesWhatFits(ScriptedSequence):
    def decode(self, ids):
        room = self._backend.n_ctx - self.position
        if len(ids) > room > 0:
            super().decode(ids[:room])
        super().decode(ids)


@fault("limits.full")
class HoldsOneLess(ScriptedSequence):
    def _check_room(self, n):
        super()._check_room(n + 1)


@fault("close.sequence")
class WorksAfterClose(ScriptedSequence):
    def close(self):
        pass


@fault("close.sequence")
class CannotBeClosedTwice(ScriptedSequence):
    def close(self):
        if self._closed:
            raise RuntimeError("double free")
        super().close()


@fault("cancel.on-piece")
class PositionIsNotRestored(ScriptedSequence):
    def decode(self, ids):
        before = self._history
        try:
            super().decode(ids)
        except ValueError:
            if len(ids) > 9:
                self._history = (*before, *ids[:3])
            raise


@fault("cancel.on-piece")
class SwallowsErrors(ScriptedSequence):
    def _pause(self):
        with contextlib.suppress(ValueError):
            super()._pause()


@fault("cancel.on-piece")
class WrapsErrors(ScriptedSequence):
    def _pause(self):
        try:
            super()._pause()
        except BaseException as error:
            raise BackendError("callback failed") from error


@fault("cancel.on-piece-tree")
class FailedNodesStay(ScriptedSequence):
    def decode_tree(self, ids, parents):
        try:
            super().decode_tree(ids, parents)
        except ValueError:
            self._paths.append(tuple(ids[:1]))
            raise


@fault("cancel.prefill")
class NeverAsks(ScriptedSequence):
    def _pause(self):
        pass


@fault("pair.interleaved")
class CutsAllSequences(ScriptedSequence):
    def truncate(self, n):
        super().truncate(n)
        self._backend.__dict__.setdefault("all", set()).add(self)
        for other in self._backend.all:
            other._history = other._history[: max(n, 1)]


@pytest.mark.parametrize(("kind", "check", "options"), FAULTS)
def test_a_faulty_sequence_is_found(kind, check, options):
    assert found(faulty(kind, **options), check)


def test_fc087_a_state_of_one_id():
    class LosesSingleIds(ScriptedSequence):
        def restore(self, state, n):
            super().restore(state, n)
            if n == 1:
                self._history = (0,)

    assert "a state of 1 ids" in found(faulty(LosesSingleIds), "state.any-order")


@pytest.mark.parametrize(
    ("capability", "check", "verb"),
    [
        ("tree", "tree.chain", "decode_tree"),
        ("save", "state.back", "save"),
        ("truncate", "truncate.redo", "truncate(2)"),
    ],
)
def test_what_is_declared_as_not_supported_must_be_refused(capability, check, verb):
    def make():
        backend = scripted_backend()
        allowed = backend.capabilities

        class Quiet(ScriptedSequence):
            """Does what its backend denies."""

        def quietly(name):
            def method(self, *args):
                backend.capabilities = allowed
                try:
                    return getattr(ScriptedSequence, name)(self, *args)
                finally:
                    backend.capabilities = denied

            return method

        for name in ("decode_tree", "save", "restore", "truncate"):
            setattr(Quiet, name, quietly(name))
        denied = Capabilities(**{
            "truncate": True, "tree": True, "save": True, capability: False
        })  # fmt: skip
        backend.capabilities = denied
        plain = backend.open

        def open_():
            sequence = plain()
            sequence.__class__ = Quiet
            return sequence

        backend.open = open_
        return backend

    says = found(make, check)
    assert verb in says
    assert "NotSupported is right" in says
