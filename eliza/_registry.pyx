"""Backend factories by name."""

cimport cython

from ._selection cimport raised, said

import logging
import os
from threading import get_ident

from .errors import InvalidArgument, InvalidType

__all__ = ["Registry"]

cdef tuple VERBS = ("available", "can_serve", "preference_rank", "open")
cdef object logger = logging.getLogger("eliza")


cdef str read_name(object name, str what):
    if not isinstance(name, str):
        raise InvalidType(f"{what} is {said(name)}; it is a text")
    if not name or name != name.strip():
        raise InvalidArgument(
            f"{what} is {name!r}; it is not empty, and has no blanks around it"
        )
    return str(name)


cdef Entry read_factory(object factory, str other):
    """Check what a registry has to know of a factory at once."""
    cdef Entry entry = Entry()
    cdef list lacking = [
        verb for verb in VERBS if not callable(getattr(factory, verb, None))
    ]
    if not hasattr(factory, "name"):
        lacking.insert(0, "name")
    if lacking:
        raise InvalidType(
            f"{said(factory)} is no backend factory: it lacks {', '.join(lacking)}; "
            "eliza.backends.base.Factory has what one needs"
        )
    aliases = getattr(factory, "aliases", ())
    if isinstance(aliases, str):
        raise InvalidType(f"aliases is {aliases!r}; give a tuple of texts")
    entry.factory = factory
    entry.name = read_name(factory.name, "the name of a backend")
    entry.key = entry.name.casefold()
    keys = [read_name(alias, "an alias").casefold() for alias in aliases]
    if other is not None:
        keys.append(other.casefold())
    entry.keys = tuple(keys)
    return entry


@cython.auto_pickle(False)
cdef class Registry:
    """Registry(builtins=(), group=None)
    --

    Backend factories by name, in the order in which they were registered.

    Names are compared without regard to case, and the first of a name stays. May be
    used from several threads.

    Parameters
    ----------
    builtins : iterable of Factory, or callable that returns one
        What `register_builtins` adds, which the first `select` calls.
    group : str, optional
        The entry points that it loads after them, such as "eliza.backends": each a
        factory, or a class of which one is made without arguments. One that cannot be
        loaded is logged; who asks for it by name is told why.
    """

    def __cinit__(self, builtins=(), group=None):
        if group is not None and not isinstance(group, str):
            raise InvalidType(f"group is {group!r}; it is a text, or None")
        if not callable(builtins):
            builtins = tuple(builtins)
        self.entries = {}
        self.broken = {}
        self.builtins = builtins
        self.group = group
        self.loading = set()
        self.loaded = False

    def register(self, factory):
        """Add a factory.

        Returns
        -------
        bool
            Whether it was added: not if one of its name is there already.

        Raises
        ------
        InvalidType, InvalidArgument
            It lacks something that `eliza.backends.base.Factory` has.
        """
        return self.add(factory, None)

    def register_builtins(self):
        """Add the built-in factories, and then those of the entry points, once."""
        if self.loaded:
            return
        # Threads that come at the same time all load, in the same order, and the first
        # of a name stays. If they waited for one, it could be waiting for a module that
        # one of them is importing.
        ident = os.getpid(), get_ident()
        if ident in self.loading:
            return  # an entry point that selects while it is being imported
        self.loading.add(ident)
        try:
            factories = self.builtins
            for factory in factories() if callable(factories) else factories:
                self.add(factory, None, True)
            if self.group is not None:
                for point in entry_points(self.group):
                    self.load(point)
            self.loaded = True
        finally:
            self.loading.discard(ident)

    cdef bint add(self, object factory, str other, bint builtin=False) except -1:
        cdef Entry entry = read_factory(factory, other)
        cdef Entry there = self.entries.get(entry.key)
        if there is not None and (there.key == entry.key or not builtin):
            return False
        if there is not None:  # an alias of another gives way to a built-in name
            del self.entries[entry.key]
        self.entries[entry.key] = entry
        for key in entry.keys:
            self.entries.setdefault(key, entry)
        return True

    cdef int load(self, object point) except -1:
        """Add what an entry point names, or note why that was not possible."""
        try:
            factory = point.load()
            if isinstance(factory, type):
                factory = factory()
            self.add(factory, point.name)
        except (Exception, SystemExit) as error:
            why = f"its entry point {point.value!r} cannot be loaded ({raised(error)})"
            if self.broken.setdefault(point.name.casefold(), why) is why:
                logger.warning("backend %s: %s", point.name, why)
        return 0

    cdef Entry find(self, str name):
        return self.entries.get(name.casefold())

    def get(self, str name not None):
        """Return the factory of a name or alias, or None."""
        cdef Entry entry = self.find(name)
        return None if entry is None else entry.factory

    @property
    def names(self):
        """The names of the factories, in the order in which they were registered."""
        return tuple([(<Entry>entry).name for entry in in_order(self)])

    def __contains__(self, name):
        return isinstance(name, str) and self.find(name) is not None

    def __repr__(self):
        return f"<Registry: {', '.join(self.names) or 'empty'}>"


cdef list in_order(Registry registry):
    return [
        entry
        for key, entry in registry.entries.copy().items()
        if key == (<Entry>entry).key
    ]


def entry_points(group):
    """Return the entry points of a group in an order that does not depend on paths."""
    from importlib import metadata

    try:
        found = list(metadata.entry_points(group=group))
    except Exception as error:
        # One package with a damaged list; the others are read one by one.
        logger.warning("entry points: %s", raised(error))
        found = []
        seen = set()
        for distribution in metadata.distributions():
            try:
                name = distribution.metadata["Name"]
                if name not in seen:
                    seen.add(name)
                    found += distribution.entry_points.select(group=group)
            except Exception as error:
                logger.warning("entry points: %s", raised(error))
    return sorted(found, key=lambda point: (point.name.casefold(), point.value))
