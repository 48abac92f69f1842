"""Properties that are found once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_T = TypeVar("_T")

__all__ = ["once"]


class once(Generic[_T]):  # noqa: N801
    """A property that is found when it is first asked for, and then kept.

    `functools.cached_property` of Python 3.11 holds a lock meanwhile, one for all
    objects: a child that is forked then would wait for it for ever. Here threads that
    ask at once each find the same, and one of the results is kept.
    """

    def __init__(self, find: Callable[[Any], _T]) -> None:
        self._find = find
        self.__doc__ = find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | _T:
        # Only until the instance has an attribute of this name, which comes first.
        if instance is None:
            return self
        value: _T = instance.__dict__.setdefault(self._name, self._find(instance))
        return value
