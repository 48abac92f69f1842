"""One timeline: decoding, rows of logits, cutting back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from eliza.backends.base import Capabilities
from eliza.conformance.rules import rule
from eliza.conformance.subject import distance, held, require
from eliza.errors import InvalidArgument

if TYPE_CHECKING:
    from eliza.backends.base import HeadRows
    from eliza.conformance.subject import Subject


@rule("backend.says")
def says(s: Subject) -> None:
    """A backend has a name, a vocabulary, a context length and capabilities, and a new
    sequence is empty.
    """
    backend = s.backend
    require(isinstance(backend.name, str) and backend.name, "name is no text")
    require(isinstance(backend.model_id, str), "model_id is no text")
    require(backend.n_ctx > 0, f"n_ctx is {backend.n_ctx}")
    require(backend.vocab.n_vocab > 0, f"n_vocab is {backend.vocab.n_vocab}")
    require(
        isinstance(backend.capabilities, Capabilities),
        f"capabilities is a {type(backend.capabilities).__name__}, not Capabilities",
    )
    sequence = s.open()
    held(sequence, 0, "a new sequence")
    require(sequence.on_piece is None, "on_piece of a new sequence is not None")
    require(sequence.max_rows >= 1, f"max_rows is {sequence.max_rows}")


@rule("backend.fingerprint", needs="save")
def fingerprint(s: Subject) -> None:
    """The fingerprint is bytes, not empty, and the same for the same model."""
    ours, theirs = s.backend.fingerprint, s.fresh().fingerprint
    require(isinstance(ours, bytes) and ours, f"fingerprint is {ours!r}")
    require(ours == theirs, "the fingerprint of the same model is another one")


@rule("decode.tells-apart")
def tells_apart(s: Subject) -> None:
    """Histories that differ have rows that differ by more than the tolerance: without
    that no comparison means anything.
    """
    ids = s.ids(12)
    other = next(i for i in s.pool if i not in ids[:1])
    for what, history in (
        ("without its first id", ids[1:]),
        ("without its last id", ids[:-1]),
        ("with its last id twice", [*ids, ids[-1]]),
        ("with another first id", [other, *ids[1:]]),
        ("with two ids swapped", [*ids[:-3], ids[-2], ids[-3], ids[-1]]),
    ):
        apart = distance(s.row_after(ids), s.row_after(history))
        require(
            apart > s.tolerance,
            f"the rows after a history and after it {what} are {apart:.3g} apart, "
            f"and the tolerance is {s.tolerance:g}",
        )


@rule("decode.divided")
def divided(s: Subject) -> None:
    """Ids decoded one by one, at once, in parts, and with a row each give the same rows
    (R12).
    """
    ids = s.ids(24)
    single = s.open()
    for n in range(1, len(ids) + 1):
        single.decode(ids[n - 1 : n])
        held(single, n, "one by one")
        s.same(single.logits(0), ids[:n], "one by one")
    parts = s.open()
    for first, last in ((0, 1), (1, 9), (9, 11), (11, 24)):
        parts.decode(ids[first:last])
        s.same(parts.logits(0), ids[:last], "in parts")
    single.close()
    parts.close()
    whole = s.grown(ids)
    s.goes_on(whole, ids, "at once")
    whole.close()
    many = s.open()
    size = min(len(ids), many.max_rows)
    for first in range(0, len(ids), size):
        many.decode_many(ids[first : first + size])
        for i in range(len(ids[first : first + size])):
            s.same(many.logits(i), ids[: first + i + 1], f"decode_many, row {i}")
    held(many, len(ids), "decode_many")
    many.decode(ids[:2])
    s.same(many.logits(0), [*ids, *ids[:2]], "decode after decode_many")


@rule("decode.long")
def long(s: Subject) -> None:
    """More ids than fit into one batch are decoded in pieces (FC-122)."""
    ids = s.ids(s.long())
    sequence = s.open()
    size = max(1, len(ids) // 3)
    for first in range(0, len(ids), size):
        sequence.decode(ids[first : first + size])
    held(sequence, len(ids), "a long history in parts")
    s.same(sequence.logits(0), ids, "a long history in parts")


@rule("decode.forms")
def forms(s: Subject) -> None:
    """Ids come as a list, a tuple or an integer array, and are not kept: what the
    caller does to them afterwards changes nothing (R6).
    """
    ids = s.ids(6)
    given: Any
    for given in (
        list(ids),
        tuple(ids),
        np.array(ids, np.int32),
        np.array(ids, np.int64),
        np.repeat(np.array(ids, np.uint32), 2)[::2],
    ):
        sequence = s.open()
        sequence.decode(given)
        if not isinstance(given, tuple):
            given[0] = given[1]
        s.goes_on(sequence, ids, f"ids as {type(given).__name__}")
        sequence.close()


@rule("rows.form")
def form(s: Subject) -> None:
    """A row is float32, has one dimension and at least n_vocab values, and holds no
    NaN; a window shows what the copy holds.
    """
    sequence = s.grown(s.ids(5))
    for name in ("logits", "logits_window"):
        sequence.truncate(0)
        sequence.decode(s.ids(5))
        row = getattr(sequence, name)(0)
        require(isinstance(row, np.ndarray), f"{name}(0) is a {type(row).__name__}")
        require(row.dtype == np.float32, f"{name}(0) is {row.dtype}, not float32")
        require(row.ndim == 1, f"{name}(0) has the shape {row.shape}")
        require(len(row) >= s.n_vocab, f"{name}(0) has {len(row)} values")
        require(not np.isnan(row[: s.n_vocab]).any(), f"{name}(0) holds NaN")
        s.same(row, s.ids(5), name)


@rule("rows.which")
def which(s: Subject) -> None:
    """Rows that the last decode did not give are refused: any before the first decode,
    those below 0 or past the last.
    """
    sequence = s.open()
    for read in (sequence.logits, sequence.logits_window):
        with s.refused(InvalidArgument, f"{read.__name__}(0) before any decode"):
            read(0)
    n = min(3, sequence.max_rows)
    for rows, decode in ((1, sequence.decode), (n, sequence.decode_many)):
        decode(s.ids(n))
        for i in (-1, rows, rows + 1):
            for read in (sequence.logits, sequence.logits_window):
                with s.refused(
                    InvalidArgument, f"{read.__name__}({i}), where {rows} rows are"
                ):
                    read(i)


@rule("rows.copy-stays")
def copy_stays(s: Subject) -> None:
    """What `logits` gave stays as it is, whatever is decoded or closed later, and to
    write into it changes nothing (R6).
    """
    ids = s.ids(6)
    sequence, other = s.grown(ids), s.grown(s.ids(3, 1))
    copy = sequence.logits(0)
    mine = sequence.logits(0)
    mine.fill(1.0)
    s.same(sequence.logits(0), ids, "after the caller wrote into a copy")
    sequence.decode(s.ids(4, 2))
    other.decode(s.ids(4, 3))
    s.same(copy, ids, "a copy, after other decodes")
    sequence.close()
    s.same(copy, ids, "a copy, after close")


@rule("rows.own")
def own(s: Subject) -> None:
    """A sequence keeps its rows while another one decodes, is cut and is closed."""
    ids = s.ids(6)
    sequence, other = s.open(), s.open()
    n = min(len(ids), sequence.max_rows)
    sequence.decode_many(ids[:n])
    other.decode(s.ids(5, 1))
    for i in range(n):
        s.same(sequence.logits(i), ids[: i + 1], f"row {i} after another's decode")
    other.truncate(0)
    other.close()
    for i in range(n):
        s.same(sequence.logits(i), ids[: i + 1], f"row {i} after another's close")
    s.goes_on(sequence, ids[:n], "after another's close")


@rule("rows.end")
def end(s: Subject) -> None:
    """After `truncate` there are no rows: they are refused, not stale."""
    ids = s.ids(5)
    cuts = (len(ids), 3, 0) if s.can_truncate else (len(ids), 0)
    for n in cuts:
        sequence = s.grown(ids)
        sequence.truncate(n)
        held(sequence, n, f"truncate({n})")
        for read in (sequence.logits, sequence.logits_window):
            with s.refused(InvalidArgument, f"{read.__name__}(0) after truncate({n})"):
                read(0)
        sequence.close()


@rule("rows.single")
def single(s: Subject) -> None:
    """Single logits, where a runtime computes them, are those of the whole row, whether
    or not that was asked for, before the decode or after it; ids that are none are
    refused.
    """
    if not s.backend.capabilities.head_rows:
        return
    ids = s.ids(5)
    n_vocab = s.backend.vocab.n_vocab
    sequence = cast("HeadRows", s.grown(ids))
    some = [*s.pool[:7][::-1], 0, n_vocab - 1]
    for wanted in ([s.pool[3]], some, [*range(n_vocab)]):
        values = sequence.logits_of(wanted)
        require(values.dtype == np.float32, f"they are {values.dtype}, not float32")
        require(values.shape == (len(wanted),), f"{len(wanted)} ids: {values.shape}")
        apart = np.abs(values - s.row_after(ids)[wanted]).max()
        require(
            apart <= s.tolerance,
            f"{len(wanted)} logits are up to {apart:.3g} from those of the row",
        )
        values[:] = 0  # the caller's own
        s.same(sequence.logits(0), ids, "after single logits")
    for wrong in ([], [-1], [n_vocab]):
        with s.refused(InvalidArgument, f"logits_of({wrong})"):
            sequence.logits_of(wrong)
    with s.refused(InvalidArgument, "logits_of of row 1, where 1 rows are"):
        sequence.logits_of([0], 1)
    n = min(3, sequence.max_rows)
    more = s.ids(n, 1)
    sequence.decode_many(more)
    for i in reversed(range(n)):
        history = [*ids, *more[: i + 1]]
        apart = np.abs(sequence.logits_of(some, i) - s.row_after(history)[some]).max()
        require(apart <= s.tolerance, f"row {i} of {n}: {apart:.3g} apart")
    for whole in (True, False):
        more.append(s.ids(1, 5 + whole)[0])
        sequence.whole_row = whole
        sequence.decode(more[-1:])
        history = [*ids, *more]
        s.same(sequence.logits(0), history, f"whole_row={whole}")
        apart = np.abs(sequence.logits_of(some) - s.row_after(history)[some]).max()
        require(apart <= s.tolerance, f"whole_row={whole}: {apart:.3g} apart")
    sequence.truncate(0)
    with s.refused(InvalidArgument, "logits_of after truncate(0)"):
        sequence.logits_of([0])


@rule("truncate.redo", needs="truncate")
def redo(s: Subject) -> None:
    """A timeline that was cut goes on as if what was dropped had never been there."""
    ids, more = s.ids(14), s.ids(6, 1)
    for n in (len(ids), len(ids) - 1, 7, 1, 0):
        sequence = s.grown(ids)
        sequence.truncate(n)
        held(sequence, n, f"truncate({n})")
        for i, token in enumerate(more):
            sequence.decode([token])
            s.same(
                sequence.logits(0), [*ids[:n], *more[: i + 1]], f"after truncate({n})"
            )
        sequence.truncate(max(0, n - 1))
        sequence.decode(ids[max(0, n - 1) :])
        s.same(sequence.logits(0), ids, "cut a second time")
        sequence.close()


@rule("truncate.trial", needs="truncate")
def trial(s: Subject) -> None:
    """A beginning of what `decode_many` computed can be kept: so guesses are taken
    back.
    """
    ids = s.ids(5)
    sequence = s.grown(ids)
    n = min(6, sequence.max_rows)
    for keep in range(n + 1):
        trial = s.ids(n, keep)
        sequence.decode_many(trial)
        for i in range(n):
            s.same(sequence.logits(i), [*ids, *trial[: i + 1]], f"a trial's row {i}")
        sequence.truncate(len(ids) + keep)
        ids = ids + trial[:keep]
        held(sequence, len(ids), f"a trial of which {keep} ids stay")
    s.goes_on(sequence, ids, "after several trials")


@rule("truncate.bounds")
def bounds(s: Subject) -> None:
    """Below 0 and past the end is refused and changes nothing; 0 and the end work on
    every runtime.
    """
    ids = s.ids(5)
    sequence = s.grown(ids)
    for n in (-1, len(ids) + 1, 10**9):
        with s.refused(InvalidArgument, f"truncate({n}) of {len(ids)} ids"):
            sequence.truncate(n)
        held(sequence, len(ids), f"after a refused truncate({n})")
        s.same(sequence.logits(0), ids, f"after a refused truncate({n})")
    sequence.truncate(len(ids))
    s.goes_on(sequence, ids, "after truncate to the end")
    sequence.truncate(0)
    s.goes_on(sequence, [], "after truncate(0)")
