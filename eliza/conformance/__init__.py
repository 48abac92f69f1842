"""Checks that say whether a runtime keeps the contract of `eliza.backends.base`.

>>> from eliza import conformance
>>> from eliza.conformance.scripted import scripted_backend
>>> report = conformance.check(scripted_backend, exact=True, only="decode.*")
>>> report.ok
True

`python -m eliza.conformance NAME MODEL` prints the same as a table, and `parametrize`
makes it part of a pytest suite; see docs/backends.md.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any

from eliza.conformance import (
    checks_cancel,
    checks_choices,
    checks_close,
    checks_decode,
    checks_draft,
    checks_limits,
    checks_pairs,
    checks_session,
    checks_state,
    checks_tree,
)
from eliza.conformance.report import Report, Result
from eliza.conformance.rules import Check
from eliza.conformance.subject import Failed, Subject
from eliza.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from eliza.backends.base import Backend

__all__ = [
    "CHECKS",
    "Check",
    "Failed",
    "Report",
    "Result",
    "Subject",
    "check",
    "parametrize",
    "select",
]

#: All checks, the simple ones first: a fault often makes later ones fail as well.
CHECKS: tuple[Check, ...] = tuple(
    found
    for module in (
        checks_decode,
        checks_tree,
        checks_state,
        checks_limits,
        checks_close,
        checks_session,
        checks_cancel,
        checks_pairs,
        checks_choices,
        checks_draft,
    )
    for found in vars(module).values()
    if isinstance(found, Check)
)


def select(only: str | None = None) -> tuple[Check, ...]:
    """Return the checks whose name matches a pattern, all by default.

    Parameters
    ----------
    only : str, optional
        A part of a name, or a pattern with ``*``, ``?`` and ``[...]``.

    Raises
    ------
    InvalidArgument
        There is none.
    """
    if only is None:
        return CHECKS
    pattern = only if any(c in only for c in "*?[") else f"*{only}*"
    found = tuple(c for c in CHECKS if fnmatch.fnmatchcase(c.name, pattern))
    if not found:
        groups = ", ".join(dict.fromkeys(c.name.partition(".")[0] for c in CHECKS))
        raise InvalidArgument(f"no check is called {only!r}; the groups are {groups}")
    return found


def check(
    backend_factory: Callable[[], Backend],
    *,
    only: str | None = None,
    exact: bool = False,
    tolerance: float = 1e-3,
    on_result: Callable[[Result], object] | None = None,
) -> Report:
    """Ask a runtime all that the contract says.

    Parameters
    ----------
    backend_factory : callable
        Without arguments, returns a new backend with a model loaded; called more than
        once.
    only : str, optional
        Which checks; see `select`.
    exact : bool
        Whether its logits are the same to the last bit however ids are divided into
        decodes. Generations must then be equal id for id.
    tolerance : float
        How far logits may lie apart otherwise; docs/backends.md says what suits which
        weights.
    on_result : callable, optional
        Called with each `Result` as soon as it is there.

    Returns
    -------
    Report
    """
    chosen = select(only)
    with Subject(backend_factory, exact=exact, tolerance=tolerance) as subject:
        backend = subject.backend
        report = Report(backend.name, backend.model_id, exact, subject.tolerance)
        for one in chosen:
            result = one.run(subject)
            report.results.append(result)
            if on_result is not None:
                on_result(result)
    return report


def parametrize(only: str | None = None) -> Any:
    """Return a pytest decorator that calls a test once for each check.

    The test takes `check` and calls it with a `Subject`; see docs/backends.md.
    """
    import pytest

    chosen = select(only)
    return pytest.mark.parametrize("check", chosen, ids=[c.name for c in chosen])
