"""What came of the checks: one line each, for people and for programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["DECLARED", "FAIL", "PASS", "Report", "Result"]

PASS, FAIL, DECLARED = "pass", "fail", "declared"

#: As the table says it; "n/s": declared as not supported, and refused as it should be.
WORDS = {PASS: "pass", FAIL: "FAIL", DECLARED: "n/s"}
COLOURS = {PASS: "\x1b[32m", FAIL: "\x1b[1;31m", DECLARED: "\x1b[33m"}


@dataclass(frozen=True)
class Result:
    """What came of one check.

    Attributes
    ----------
    name : str
        Of the check.
    status : {"pass", "fail", "declared"}
        "declared": the runtime says that it cannot do this, and refused it.
    seconds : float
        What it took.
    detail : str
        What was wrong, or what was declared.
    rule : str
        What was asked.
    """

    name: str
    status: str
    seconds: float
    detail: str
    rule: str

    def line(self, *, colour: bool = False) -> str:
        """Return the table's line, and what was wrong below it."""
        word = f"{WORDS[self.status]:<5}"
        if colour:
            word = f"{COLOURS[self.status]}{word}\x1b[0m"
        text = f"{self.name:<28} {word} {self.seconds:7.2f} s"
        if self.status == DECLARED:
            text += f"  {self.detail}"
        if self.status == FAIL:
            for label, said in (("rule", self.rule), ("here", self.detail)):
                text += "\n" + textwrap.fill(
                    said,
                    width=88,
                    initial_indent=f"    {label}: ",
                    subsequent_indent="          ",
                    break_on_hyphens=False,
                )
        return text


@dataclass
class Report:
    """What came of all checks.

    Attributes
    ----------
    backend, model : str
        What the runtime calls itself, and its model.
    exact : bool
        Whether logits had to be equal to the last bit.
    tolerance : float
        How far they could lie apart otherwise.
    results : list of Result
        In the order of the checks.
    """

    backend: str
    model: str
    exact: bool
    tolerance: float
    results: list[Result] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> list[Result]:
        """Those that failed."""
        return [result for result in self.results if result.status == FAIL]

    def count(self, status: str) -> int:
        """Return how many have a status."""
        return sum(result.status == status for result in self.results)

    def head(self) -> str:
        """Return what is said before the table."""
        how = "to the last bit" if self.exact else f"within {self.tolerance:g}"
        return f"{self.backend} {self.model}".rstrip() + f", logits compared {how}"

    def summary(self) -> str:
        """Return what is said after the table."""
        seconds = sum(result.seconds for result in self.results)
        return (
            f"{self.count(PASS)} passed, {self.count(FAIL)} failed, "
            f"{self.count(DECLARED)} declared as not supported and refused; "
            f"{seconds:.1f} s"
        )

    def __str__(self) -> str:
        lines = [result.line() for result in self.results]
        return "\n".join([self.head(), *lines, self.summary()])

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        return {"ok": self.ok, **asdict(self)}
