from collections.abc import Callable, Iterable
from typing import final

from eliza.backends.base import Factory

__all__ = ["Registry"]

@final
class Registry:
    def __new__(
        cls,
        builtins: Iterable[Factory] | Callable[[], Iterable[Factory]] = (),
        group: str | None = None,
    ) -> Registry: ...
    def register(self, factory: Factory) -> bool: ...
    def register_builtins(self) -> None: ...
    def get(self, name: str) -> Factory | None: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    def __contains__(self, name: object, /) -> bool: ...
