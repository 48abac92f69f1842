"""Faulty runtimes, and what a check says of them."""

from __future__ import annotations

from eliza import conformance
from eliza.conformance.scripted import scripted_backend


def faulty(kind, **options):
    """Return a factory of backends whose sequences are of a faulty kind."""

    def make():
        backend = scripted_backend(**options)
        plain = backend.open

        def open_():
            sequence = plain()
            sequence.__class__ = kind
            return sequence

        backend.open = open_
        return backend

    return make


def found(factory, check, **options):
    """Ask one check; return what it says."""
    options.setdefault("exact", True)
    options.setdefault("patience", 5)
    with conformance.Subject(factory, **options) as subject:
        (one,) = (c for c in conformance.CHECKS if c.name == check)
        result = one.run(subject)
    assert result.status == "fail", f"{check} did not find it"
    return result.detail
