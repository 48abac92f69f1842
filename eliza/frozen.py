"""Objects that do not change, where a named tuple will not do.

A dataclass costs 0.3 ms of every import, a named tuple 0.05, this nothing; but a named
tuple has the order, the length and the methods of tuples beside its own.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["Frozen"]


class Frozen:
    """Attributes that are set once, by `_set` in `__init__`.

    A derived class names them in `__slots__`. Those that do not begin with an
    underscore are shown and compared.
    """

    __slots__: tuple[str, ...] = ()

    def _set(self, *values: Any) -> None:
        """Give the attributes their values, in the order of `__slots__`."""
        put = object.__setattr__
        for name, value in zip(self.__slots__, values, strict=True):
            put(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():  # copied, or unpickled
            object.__setattr__(self, name, value)

    def _shown(self) -> dict[str, Any]:
        names = [name for name in self.__slots__ if not name.startswith("_")]
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._shown() == other._shown()

    def __hash__(self) -> int:
        return hash(tuple(self._shown().values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={x!r}" for name, x in self._shown().items())
        return f"{type(self).__name__}({shown})"
