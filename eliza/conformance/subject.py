"""What a check is given: the runtime under test, and ways to ask it."""

from __future__ import annotations

import contextlib
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.conformance.threads import Worker
from eliza.errors import InvalidArgument
from eliza.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Sequence as Ids
    from typing import Self

    from eliza.backends.base import Backend, Row, Sequence
    from eliza.errors import ElizaError
    from eliza.session import Session

__all__ = ["Failed", "Subject", "held", "require"]

#: How many different ids the checks are written with.
POOL = 48


class Failed(AssertionError):
    """A rule that a runtime does not keep; the text says how that showed."""


class Subject:
    """A runtime under test.

    A context manager: at its end the backends that it made are closed.

    Parameters
    ----------
    factory : callable
        Without arguments, returns a new backend with the model loaded. It is called
        more than once: some checks close what they were given.
    exact : bool
        Whether logits are the same to the last bit, however ids are divided into
        decodes. Generations are then compared id for id.
    tolerance : float
        How far logits may lie apart otherwise. An id counts as the best one if it is
        within twice of it.
    patience : float
        Seconds after which a call in another thread counts as hung.
    """

    def __init__(
        self,
        factory: Callable[[], Backend],
        *,
        exact: bool = False,
        tolerance: float = 1e-3,
        patience: float = 60.0,
    ) -> None:
        if not tolerance >= 0:
            raise InvalidArgument(f"tolerance is {tolerance}; it is 0 or more")
        self.exact = exact
        self.tolerance = 0.0 if exact else tolerance
        self.patience = patience
        self._factory = factory
        self._backend: Backend | None = None
        self._model: Model | None = None
        self._undo = ExitStack()
        self._known: dict[tuple[int, ...], Row] = {}
        self._pool: list[int] = []
        self._hung = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the backend."""
        self.end(keep=False)

    # -- one check after another -------------------------------------------------

    def end(self, *, keep: bool) -> None:
        """Forget what a check opened; without `keep`, the next has a new backend."""
        undo, self._undo = self._undo, ExitStack()
        self._known.clear()
        self._model = None
        backend = self._backend
        if not keep:
            self._backend = None
        if self._hung:  # to close what a thread is in could hang as well
            self._hung = False
            undo.pop_all()
            self._backend = None
            return
        with contextlib.suppress(Exception):
            undo.close()
        if not keep and backend is not None:
            with contextlib.suppress(Exception):
                backend.close()

    # -- what is under test ------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """A backend that several checks use; not to be closed."""
        if self._backend is None:
            self._backend = self._factory()
        return self._backend

    def fresh(self) -> Backend:
        """Return a backend of the check's own, which it may close."""
        backend = self._factory()
        self._undo.callback(backend.close)
        return backend

    def open(self, backend: Backend | None = None) -> Sequence:
        """Open a sequence; the end of the check closes it."""
        sequence = (backend or self.backend).open()
        self._undo.callback(sequence.close)
        return sequence

    def grown(self, ids: Ids[int]) -> Sequence:
        """Return a new sequence that holds these ids."""
        sequence = self.open()
        sequence.decode(ids)
        return sequence

    @property
    def model(self) -> Model:
        """A model over `backend`; not to be closed."""
        if self._model is None:
            self._model = Model(self.backend)
        return self._model

    def session(self, model: Model | None = None, **options: Any) -> Session:
        """Open a session; the end of the check closes it."""
        session = (model or self.model).open(**options)
        self._undo.callback(session.close)
        return session

    def folder(self) -> Path:
        """Return an empty folder, which the end of the check removes."""
        return Path(self._undo.enter_context(tempfile.TemporaryDirectory()))

    def room_for_guesses(self) -> bool:
        """Whether a batch has a row for more than one id."""
        sequence = self.backend.open()
        n = sequence.max_rows
        sequence.close()
        return n > 1

    @property
    def can_truncate(self) -> bool:
        """Whether sequences can be cut anywhere."""
        return self.backend.capabilities.truncate

    @property
    def can_save(self) -> bool:
        """Whether sequences can be saved."""
        return self.backend.capabilities.save

    @property
    def n_vocab(self) -> int:
        """The size of the vocabulary."""
        return self.backend.vocab.n_vocab

    # -- ids ---------------------------------------------------------------------

    @property
    def pool(self) -> list[int]:
        """Different ids that are neither special nor end a generation."""
        if not self._pool:
            vocab, rng = self.backend.vocab, np.random.default_rng(11)
            eog = set(vocab.eog)
            for token in rng.permutation(vocab.n_vocab).tolist():
                if token not in eog and not vocab.is_special(token):
                    self._pool.append(token)
                if len(self._pool) == POOL:
                    break
            require(
                len(self._pool) >= 16,
                f"the vocabulary has {len(self._pool)} ids that are not special; the "
                "checks need 16",
            )
        return self._pool

    def ids(self, n: int, seed: int = 0) -> list[int]:
        """Return n ids, others for another seed, no two neighbours equal."""
        rng, pool = np.random.default_rng([n, seed]), self.pool
        at = np.cumsum(rng.integers(1, len(pool), n)) % len(pool)
        return [pool[i] for i in at.tolist()]

    def long(self) -> int:
        """Return how many ids a long decode has: several pieces, if there are any."""
        # Twice it has to fit: what one sequence holds, others may not be able to.
        return max(8, min(300, self.backend.n_ctx // 2 - 32))

    # -- what is right -----------------------------------------------------------

    def row_after(self, ids: Ids[int]) -> Row:
        """Return the logits after a history, decoded at once in a sequence of its own.

        All other ways to the same history are compared with it.
        """
        key = tuple(ids)
        if key not in self._known:
            sequence = self.backend.open()
            try:
                sequence.decode(list(key))
                self._known[key] = sequence.logits(0)[: self.n_vocab].copy()
            finally:
                sequence.close()
        return self._known[key]

    def know(self, ids: Ids[int], first: int) -> None:
        """Take up the rows after ids[:first] and all longer beginnings at little cost.

        They are decoded one by one, which `decode.divided` compares with all at once.
        """
        sequence = self.backend.open()
        try:
            sequence.decode(list(ids[:first]))
            for n in range(first, len(ids) + 1):
                row = sequence.logits(0)[: self.n_vocab].copy()
                self._known.setdefault(tuple(ids[:n]), row)
                if n < len(ids):
                    sequence.decode([ids[n]])
        finally:
            sequence.close()

    def same(self, row: Row, ids: Ids[int], what: str) -> None:
        """Require a row to be the one after these ids."""
        row = row[: self.n_vocab].copy()  # a window ends with what is decoded now
        expected = self.row_after(ids)
        apart = distance(row, expected)
        if not apart <= self.tolerance:
            raise Failed(
                f"{what}: the logits after {len(ids)} ids are off by {apart:.3g} "
                f"(tolerance {self.tolerance:g})"
            )

    def goes_on(self, sequence: Sequence, ids: Ids[int], what: str) -> None:
        """Require a sequence to hold these ids, by decoding one more."""
        held(sequence, len(ids), what)
        more = self.ids(1, len(ids))
        sequence.decode(more)
        self.same(sequence.logits(0), [*ids, *more], what)

    def best(self, token: int, row: Row, allowed: Iterable[int], what: str) -> None:
        """Require an id to be the one that greedy takes among those allowed."""
        ids = sorted(allowed)
        require(token in ids, f"{what}: id {token} came, which is not allowed")
        most = max(ids, key=lambda i: (row[i], -i))
        if self.exact:
            good = token == most
        else:
            good = bool(row[token] >= row[most] - 2 * self.tolerance)
        require(
            good,
            f"{what}: id {token} came, with logit {row[token]:.6g}, and id {most} has "
            f"{row[most]:.6g}",
        )

    def two_only(self) -> tuple[list[int], dict[int, float]]:
        """Return a prompt of two ids, and a bias that lets no others come.

        The prompt has all their pairs, so that lookup finds any text of them in it.
        """
        a, b = self.pool[:2]
        bias = dict.fromkeys(range(self.n_vocab), -np.inf)
        del bias[a], bias[b]
        return [a, a, b, b, a, b, a, a, b], bias

    def free(
        self, session: Session, n: int, what: str, allowed: Ids[int] = ()
    ) -> list[int]:
        """Let a session write up to n ids of greedy text, and check each.

        Parameters
        ----------
        allowed : sequence of int
            The only ids that its bias lets come; all by default.
        """
        start = len(session.history)
        finish = None
        while finish is None and len(session.history) < start + n:
            finish = session.next().finish_reason
        history = list(session.history)
        self.know(history, start)
        for at in range(start, len(history)):
            row = self.row_after(history[:at])
            among = allowed or range(self.n_vocab)
            self.best(history[at], row, among, f"{what}, id {at - start}")
        if finish == "stop":
            row = self.row_after(history)
            end = max(self.backend.vocab.eog, key=lambda i: float(row[i]))
            self.best(end, row, range(self.n_vocab), f"{what}, its end")
        return history[start:]

    # -- errors ------------------------------------------------------------------

    @contextmanager
    def refused(
        self, kind: type[ElizaError] | tuple[type[ElizaError], ...], what: str
    ) -> Iterator[None]:
        """Require the block to raise an error of this kind, or of one of these."""
        kinds = kind if isinstance(kind, tuple) else (kind,)
        right = " or ".join(one.__name__ for one in kinds)
        try:
            yield
        except kinds:
            return
        except Failed:
            raise
        except Exception as error:
            name = type(error).__name__
            raise Failed(f"{what}: {name} ({error}) came; {right} is right") from error
        raise Failed(f"{what}: it was accepted; {right} is right")

    # -- threads -----------------------------------------------------------------

    def thread(self, work: Callable[[], Any]) -> Worker:
        """Start work in another thread."""
        return Worker(self, work)

    def hang(self, what: str) -> Failed:
        """Note that a thread did not come back; return the error to raise."""
        self._hung = True
        return Failed(f"{what}: no end after {self.patience:g} seconds")


def require(condition: object, what: str) -> None:
    """Raise Failed unless a condition holds."""
    if not condition:
        raise Failed(what)


def held(sequence: Sequence, n: int, what: str) -> None:
    """Require a position."""
    position = sequence.position
    require(position == n, f"{what}: position is {position}, not {n}")


def distance(a: Row, b: Row) -> float:
    """Return the greatest difference of two rows; equal infinities are none apart."""
    if a.shape != b.shape:
        raise Failed(f"a row has the shape {a.shape}, and another {b.shape}")
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, np.float32(0), np.abs(a - b))
    return float(apart.max())
