"""Backend factories for tests that need no runtime."""

from __future__ import annotations

from eliza import Registry, select
from eliza._dispatch import NEEDS

ENV = "ELIZA_LLM_BACKEND"
ALL = frozenset(NEEDS)


class Fake:
    """A factory that does what it is told, and notes what it is asked."""

    def __init__(
        self,
        name="fake",
        *,
        rank=1,
        available=True,
        serves=True,
        provides=ALL,
        aliases=(),
        install="pip install fake",
        opened=None,
    ):
        self.name = name
        self.aliases = aliases
        self.provides = provides
        self.install = install
        self.asked = []
        self._answers = {"available": available, "can_serve": serves, "rank": rank}
        self._opened = opened

    def _answer(self, verb):
        self.asked.append(verb)
        answer = self._answers[verb]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def available(self):
        return self._answer("available")

    def can_serve(self, bundle):
        return self._answer("can_serve")

    def preference_rank(self):
        return self._answer("rank")

    def open(self, bundle, **options):
        self.asked.append(("open", bundle, options))
        if isinstance(self._opened, BaseException):
            raise self._opened
        return self._opened


def registry_of(*factories):
    registry = Registry()
    for factory in factories:
        registry.register(factory)
    return registry


def pick(*factories, name=None, need=(), bundle="bundle"):
    env = {} if name is None else {ENV: name}
    return select(bundle, registry_of(*factories), env, need)


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text either")
