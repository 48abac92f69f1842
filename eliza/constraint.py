"""What a session needs of a constraint, whatever stands behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Constraint"]


class Constraint(Protocol):
    """A position in a set of permitted id sequences; `eliza.Cursor` is one.

    `allowed` and `accept` agree: an id is accepted if and only if it is allowed.
    """

    @property
    def done(self) -> bool:
        """Whether the span is complete; then nothing is allowed."""

    def allowed(self) -> NDArray[np.int32]:
        """Return the ids that may come next, sorted."""

    def forced(self) -> NDArray[np.int32]:
        """Return the ids that can only go one way from here; empty if none."""

    def accept(self, token: int) -> None:
        """Take an id.

        Raises
        ------
        OffPathError
            The id is not allowed here; the position is unchanged.
        """

    def rollback(self, n: int = 1) -> None:
        """Take back the last n accepted ids."""

    def copy(self) -> Self:
        """Return an independent constraint at the same position."""

    def argmax(self, logits: Any) -> int:
        """Return the allowed id with the highest logit, ties to the lowest id.

        Raises
        ------
        NoCandidateError
            No allowed id has a logit other than NaN and -inf.
        """

    def sample(
        self,
        logits: Any,
        rng: np.random.Generator,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> int:
        """Draw one of the allowed ids; the filters count among them.

        Raises
        ------
        NoCandidateError
            As `argmax`.
        """

    def logprobs(self, logits: Any, whole_row: bool = False) -> NDArray[np.float64]:
        """Return log-softmax values aligned with `allowed`."""
