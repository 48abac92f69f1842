from collections.abc import Iterable, Mapping
from typing import Any, Final

from eliza._registry import Registry as Registry
from eliza._selection import DEFAULT as DEFAULT
from eliza._selection import ERROR as ERROR
from eliza._selection import USE as USE
from eliza._selection import Selection as Selection
from eliza.backends.base import Factory

__all__ = ["DEFAULT", "ERROR", "NEEDS", "USE", "VARIABLE", "Registry", "Selection"]
__all__ += ["select"]

VARIABLE: Final[str]
NEEDS: Final[tuple[str, ...]]

def select(
    bundle: Any,
    registry: Registry,
    env: Mapping[str, str] | None = None,
    need: Iterable[str] = (),
    *,
    backend: str | None = None,
    default: Factory | None = None,
) -> Selection: ...
