"""The errors of eliza: one base class, one status code per kind.

The codes are those of the C interface, so that an error crossing it and coming
back is the same error. `error_from_code` is the only table from codes to classes.
"""

from __future__ import annotations

__all__ = [
    "AbiMismatch",
    "BackendError",
    "BundleError",
    "Cancelled",
    "Closed",
    "ContextOverflow",
    "ElizaError",
    "InvalidArgument",
    "InvalidType",
    "NoCandidateError",
    "NotSupported",
    "OffPathError",
    "OutOfMemory",
    "TokenLimit",
    "error_from_code",
    "shown",
]


class ElizaError(Exception):
    """Base of all errors that eliza raises on purpose.

    Parameters
    ----------
    code : int
        Status code of the C interface, below zero.
    message : str
        What was wrong, where, and what would be right.
    """

    code: int = 0

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class _CodedError(ElizaError):
    """An error whose code is fixed by its class."""

    def __init__(self, message: str) -> None:
        super().__init__(type(self).code, message)
        self.args = (message,)


class NotSupported(_CodedError):
    """A backend, or this version, cannot do what was asked; it did nothing."""

    code = -1


class InvalidArgument(_CodedError, ValueError):
    """A value is outside what the function takes."""

    code = -2


class InvalidType(InvalidArgument, TypeError):
    """A value has a type that the function does not take."""


class BundleError(_CodedError):
    """A model file or folder is missing, cut short, or not what it claims to be."""

    code = -3


class BackendError(_CodedError):
    """The runtime failed while it was computing."""

    code = -4


class OutOfMemory(_CodedError, MemoryError):
    """Memory for the request could not be had."""

    code = -5


class AbiMismatch(_CodedError):
    """A plugin or a library speaks another version of the interface."""

    code = -6


class Cancelled(_CodedError):
    """The call was cancelled; no answer was given."""

    code = -7


class OffPathError(_CodedError):
    """An id that the constraint does not allow here; the position is unchanged."""

    code = -8


class ContextOverflow(_CodedError):
    """The ids do not fit into the context of the model."""

    code = -9


class NoCandidateError(_CodedError):
    """Every allowed id has a logit of NaN or -inf, or nothing is allowed."""

    code = -10


class Closed(_CodedError):
    """The object was used after it was closed."""

    code = -11


class TokenLimit(_CodedError):
    """`max_tokens` is reached inside a span: the choice is not complete."""

    code = -12


_BY_CODE: dict[int, type[_CodedError]] = {
    cls.code: cls
    for cls in (
        NotSupported,
        InvalidArgument,
        BundleError,
        BackendError,
        OutOfMemory,
        AbiMismatch,
        Cancelled,
        OffPathError,
        ContextOverflow,
        NoCandidateError,
        Closed,
        TokenLimit,
    )
}


def error_from_code(code: int, message: str) -> ElizaError:
    """Make the error that belongs to a status code of the C interface.

    Parameters
    ----------
    code : int
        A negative status code.
    message : str
        The text that came with it.

    Returns
    -------
    ElizaError
        An instance of the class with this code, else a plain `ElizaError`.
    """
    cls = _BY_CODE.get(code)
    return ElizaError(code, message) if cls is None else cls(message)


def shown(text: str) -> str:
    """Return a text as it appears in a message: quoted, and cut when it is long."""
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."
