"""A check: a rule with a name, and what is asked where a runtime declares less."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from eliza.conformance.report import DECLARED, FAIL, PASS, Result
from eliza.conformance.subject import Failed, held, require
from eliza.errors import NotSupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from eliza.conformance.subject import Subject

__all__ = ["Check", "rule"]


@dataclass(frozen=True)
class Check:
    """One rule.

    Attributes
    ----------
    name : str
        "group.what".
    ask : callable
        Given a `Subject`, raises `Failed` if the rule is not kept. Its docstring is
        the rule.
    needs : str or None
        The capability that it is about. Where the runtime declares that it lacks it,
        what is checked is that it refuses.
    """

    name: str
    ask: Callable[[Subject], None]
    needs: str | None = None

    @property
    def text(self) -> str:
        """The rule in words."""
        return " ".join((self.ask.__doc__ or "").split())

    def __call__(self, subject: Subject) -> str:
        """Ask; return "pass" or "declared".

        Raises
        ------
        Failed
            The rule is not kept. Other errors pass through: they are failures too.
        """
        well = False
        try:
            if self.needs is not None:
                capability, refusal = _REFUSALS[self.needs]
                if not getattr(subject.backend.capabilities, capability):
                    refusal(subject)
                    well = True
                    return DECLARED
            self.ask(subject)
            well = True
            return PASS
        finally:
            subject.end(keep=well)

    def run(self, subject: Subject) -> Result:
        """Ask, and write down what came."""
        start = perf_counter()
        try:
            status, detail = self(subject), ""
            if status == DECLARED:
                detail = f"declared without {self.needs}, and refused"
        except Failed as error:
            status, detail = FAIL, str(error)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            status = FAIL
            detail = f"{type(error).__name__} at {where}: {error}"
        return Result(self.name, status, perf_counter() - start, detail, self.text)


def rule(
    name: str, needs: str | None = None
) -> Callable[[Callable[[Subject], None]], Check]:
    """Make a check of a function."""

    def made(ask: Callable[[Subject], None]) -> Check:
        return Check(name, ask, needs)

    return made


# -- what is asked of a runtime that declares less -------------------------------------


def _truncates_not(s: Subject) -> None:
    ids = s.ids(4)
    sequence = s.grown(ids)
    with s.refused(NotSupported, "truncate(2) of 4 ids"):
        sequence.truncate(2)
    s.goes_on(sequence, ids, "after a refused truncate")


def _trees_not(s: Subject) -> None:
    ids = s.ids(4)
    sequence = s.grown(ids)
    with s.refused(NotSupported, "decode_tree"):
        sequence.decode_tree(s.ids(1), [-1])
    s.goes_on(sequence, ids, "after a refused decode_tree")


def _saves_not(s: Subject) -> None:
    ids = s.ids(4)
    sequence = s.grown(ids)
    with s.refused(NotSupported, "save"):
        sequence.save()
    with s.refused(NotSupported, "restore"):
        sequence.restore(b"", 1)
    s.goes_on(sequence, ids, "after a refused save")


def _drafts_not(s: Subject) -> None:
    with s.refused(NotSupported, "open(draft='lookup')"):
        s.session(draft="lookup")


def _slots_not(s: Subject) -> None:
    session = s.session()
    session.prefill(s.ids(4))
    path = s.folder() / "slot"
    with s.refused(NotSupported, "save_slot"):
        session.save_slot(path)
    require(not path.exists(), "a refused save_slot left a file")
    held(session.timeline.sequence, 4, "after a refused save_slot")


_REFUSALS: dict[str, tuple[str, Callable[[Subject], None]]] = {
    "truncate": ("truncate", _truncates_not),
    "tree": ("tree", _trees_not),
    "save": ("save", _saves_not),
    "draft": ("truncate", _drafts_not),
    "slot": ("save", _slots_not),
}
