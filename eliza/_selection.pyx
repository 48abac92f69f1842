"""What a selection gives: a value of one of three types, which cannot be mistaken."""

cimport cython

from .errors import BundleError, InvalidType, NotSupported

__all__ = ["DEFAULT", "ERROR", "USE", "Selection"]


cdef str said(object value):
    """Return how to write something of a stranger's in a message."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 200 else text[:199] + "…"


cdef str raised(object error):
    """Return how to write what a stranger raised."""
    try:
        text = str(error)
    except Exception:
        text = ""
    if len(text) > 400:
        text = text[:399] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


cdef int refuse_class(object other) except -1:
    """Raise for a comparison with a state in place of a value of it."""
    if other is USE or other is DEFAULT or other is ERROR:
        raise InvalidType(
            f"a selection is never equal to {other.__name__} itself; write "
            f"`case {other.__name__}(...)`, or isinstance(selection, {other.__name__})"
        )
    return 0


cdef object refuse_truth():
    return InvalidType(
        "a selection is neither true nor false; match it with USE(factory), DEFAULT() "
        "and ERROR(message), or call unwrap()"
    )


@cython.auto_pickle(False)
cdef class USE:
    """USE(factory)
    --

    The outcome of `select`: this backend.

    Attributes
    ----------
    factory : Factory
    """

    __match_args__ = ("factory",)

    def __cinit__(self, factory):
        if factory is None:
            raise InvalidType("USE takes a factory, not None; DEFAULT() is llama.cpp")
        self.factory = factory

    def unwrap(self):
        """Return the factory."""
        return self.factory

    def __bool__(self):
        raise refuse_truth()

    def __eq__(self, other):
        refuse_class(other)
        return type(other) is USE and (<USE>other).factory is self.factory

    def __hash__(self):
        return hash((USE, id(self.factory)))

    def __repr__(self):
        return f"USE({said(self.factory)})"


@cython.auto_pickle(False)
cdef class DEFAULT:
    """DEFAULT(factory=None)
    --

    The outcome of `select`: llama.cpp, in the way that eliza comes with.

    Attributes
    ----------
    factory : Factory or None
        That of llama.cpp. `eliza.select` always gives one.
    """

    __match_args__ = ("factory",)

    def __cinit__(self, factory=None):
        self.factory = factory

    def unwrap(self):
        """Return the factory of llama.cpp.

        Raises
        ------
        NotSupported
            There is none: the selection came from a registry without llama.cpp.
        """
        if self.factory is None:
            raise NotSupported(
                "the selection is llama.cpp, and its registry has no such factory; "
                "eliza.select(...) knows one"
            )
        return self.factory

    def __bool__(self):
        raise refuse_truth()

    def __eq__(self, other):
        refuse_class(other)
        return type(other) is DEFAULT and (<DEFAULT>other).factory is self.factory

    def __hash__(self):
        return hash((DEFAULT, id(self.factory)))

    def __repr__(self):
        return f"DEFAULT({'' if self.factory is None else said(self.factory)})"


@cython.auto_pickle(False)
cdef class ERROR:
    """ERROR(message, error=NotSupported, cause=None)
    --

    The outcome of `select`: what was asked for cannot be had.

    Attributes
    ----------
    message : str
    error : type
        The kind of the error, which `unwrap` raises: `NotSupported` or `BundleError`.
    cause : Exception or None
        What a factory raised.
    """

    __match_args__ = ("message",)

    def __cinit__(self, str message not None, error=NotSupported, cause=None):
        if error is not NotSupported and error is not BundleError:
            raise InvalidType(f"error is {error!r}; it is NotSupported or BundleError")
        self.message = message
        self.error = error
        self.cause = cause

    def unwrap(self):
        """Raise the error."""
        raise self.error(self.message) from self.cause

    def __bool__(self):
        raise refuse_truth()

    def __eq__(self, other):
        refuse_class(other)
        if type(other) is not ERROR:
            return False
        return (self.message, self.error) == (
            (<ERROR>other).message, (<ERROR>other).error
        )

    def __hash__(self):
        return hash((ERROR, self.message, self.error))

    def __repr__(self):
        return f"ERROR({self.message!r})"


#: What `select` gives; `isinstance(value, Selection)` works.
Selection = USE | DEFAULT | ERROR
