"""Which runtime serves a bundle: a registry of factories, and a choice in three states.

>>> match select("bundle", Registry(), env={"ELIZA_LLM_BACKEND": "fast"}):
...     case USE(factory):
...         print(factory.name)
...     case DEFAULT():
...         print("llama.cpp")
...     case ERROR(message):
...         print("sorry:", message)
sorry: ELIZA_LLM_BACKEND=fast is not a registered backend: there are none

What a factory is, `eliza.backends.base.Factory` says. Nothing is assumed of one: what
its probes raise or give is caught here, and said.
"""

cimport cython

import logging
import operator
import os
from threading import get_ident

from .errors import BundleError, InvalidArgument, InvalidType, NotSupported

__all__ = ["DEFAULT", "ERROR", "NEEDS", "USE", "VARIABLE", "Registry", "Selection"]
__all__ += ["select"]

#: The environment's hard choice.
VARIABLE = "ELIZA_LLM_BACKEND"

#: What a caller can need of a backend.
NEEDS = ("mask", "forced_run", "rollback", "tree")

cdef frozenset LLAMA = frozenset(("llama.cpp", "llamacpp", "llama"))
cdef tuple VERBS = ("available", "can_serve", "preference_rank", "open")
cdef object logger = logging.getLogger("eliza")


class Fault(Exception):
    """A factory that did not do what the protocol says."""


# Three states


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


# The registry


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
                self.add(factory, None)
            if self.group is not None:
                for point in entry_points(self.group):
                    self.load(point)
            self.loaded = True
        finally:
            self.loading.discard(ident)

    cdef bint add(self, object factory, str other) except -1:
        cdef Entry entry = read_factory(factory, other)
        if self.entries.setdefault(entry.key, entry) is not entry:
            return False
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


# Selecting


cdef object ask(Entry entry, str verb, tuple given):
    try:
        return getattr(entry.factory, verb)(*given)
    except Exception as error:
        raise Fault(f"its {verb}() raised {raised(error)}") from error


cdef bint ask_bool(Entry entry, str verb, tuple given) except -1:
    answer = ask(entry, verb, given)
    if answer is not True and answer is not False:
        raise Fault(f"its {verb}() gave {said(answer)}; it gives True or False")
    return answer


cdef object ask_rank(Entry entry):
    rank = ask(entry, "preference_rank", ())
    try:
        if isinstance(rank, bool):
            raise TypeError
        return operator.index(rank)
    except Exception:
        raise Fault(
            f"its preference_rank() gave {said(rank)}; it gives a whole number"
        ) from None


cdef tuple lacks(object factory, tuple needs):
    """Return which of the needs a factory does not provide."""
    if not needs:
        return ()
    try:
        provides = getattr(factory, "provides", ())
        if isinstance(provides, str):
            raise TypeError("provides is a text; give a set of texts")
        provides = frozenset(provides)
    except Exception as error:
        raise Fault(f"its provides cannot be read ({raised(error)})") from error
    return tuple([need for need in needs if need not in provides])


cdef tuple read_needs(object need):
    if isinstance(need, (str, bytes)):
        raise InvalidType(f"need is {need!r}; give a tuple, such as ('mask',)")
    try:
        needs = tuple(need)
    except TypeError:
        raise InvalidType(f"need is {need!r}; give a tuple of texts") from None
    for one in needs:
        if one not in NEEDS:
            raise InvalidArgument(
                f"need has {one!r}; what can be needed is {', '.join(NEEDS)}"
            )
    return tuple(dict.fromkeys(needs))


cdef str read_variable(object env):
    value = (os.environ if env is None else env).get(VARIABLE)
    if value is not None and not isinstance(value, str):
        raise InvalidType(f"env[{VARIABLE!r}] is {value!r}; it is a text")
    return value


cdef object take_default(object factory, tuple needs, str label):
    """Select llama.cpp, unless it lacks what is needed."""
    if factory is None:
        return DEFAULT()
    try:
        missing = lacks(factory, needs)
    except Fault as fault:
        return ERROR(f"{label}: {fault}", NotSupported, fault.__cause__)
    if missing:
        return ERROR(f"{label} does not provide {', '.join(missing)}, which is needed")
    return DEFAULT(factory)


cdef object take_named(
    Registry registry, str name, str label, object bundle, tuple needs, object default
):
    """Do what a hard choice says, or say why not."""
    cdef Entry entry
    cdef type kind = NotSupported
    if name != name.strip():
        return ERROR(f"{label} has blanks around the name; leave them out")
    if name.casefold() in LLAMA:
        return take_default(default, needs, label)
    entry = registry.find(name)
    if entry is None:
        why = registry.broken.get(name.casefold())
        if why is None:
            why = f"there are {', '.join(registry.names) or 'none'}"
        return ERROR(f"{label} is not a registered backend: {why}")
    try:
        if not ask_bool(entry, "available", ()):
            hint = getattr(entry.factory, "install", "")
            hint = f": {hint}" if isinstance(hint, str) and hint else ""
            return ERROR(f"{label} is not available in this build/host{hint}")
        kind = BundleError
        if not ask_bool(entry, "can_serve", (bundle,)):
            where = "(null)" if bundle is None else str(bundle)
            content = getattr(bundle, "content", None)
            holds = f": it holds {content()}" if callable(content) else ""
            return ERROR(f"{label} cannot serve the bundle at {where}{holds}", kind)
        kind = NotSupported
        missing = lacks(entry.factory, needs)
    except Fault as fault:
        cause = fault.__cause__
        for known in (NotSupported, BundleError):
            if isinstance(cause, known):
                kind = known
        return ERROR(f"{label}: {fault}", kind, cause)
    except Exception as error:  # of the bundle itself
        return ERROR(f"{label}: {raised(error)}", BundleError, error)
    if missing:
        return ERROR(f"{label} does not provide {', '.join(missing)}, which is needed")
    return USE(entry.factory)


cdef object take_best(Registry registry, object bundle, tuple needs):
    """Return the entry of the highest rank that can do it, or None."""
    cdef list ranked = []
    cdef Entry entry
    for entry in in_order(registry):
        if entry.key in LLAMA:
            continue  # which is the default, whatever rank it has
        try:
            rank = ask_rank(entry)
            if rank > 0:
                ranked.append((-rank, len(ranked), entry))
        except Fault as fault:
            logger.warning("backend %s is not selected: %s", entry.name, fault)
    ranked.sort()
    for _, _, entry in ranked:
        try:
            if (
                ask_bool(entry, "available", ())
                and not lacks(entry.factory, needs)
                and ask_bool(entry, "can_serve", (bundle,))
            ):
                return entry
        except Fault as fault:
            logger.warning("backend %s is not selected: %s", entry.name, fault)
    return None


def select(
    bundle, Registry registry not None, env=None, need=(), *, backend=None, default=None
):
    """Choose the backend that serves a bundle.

    Parameters
    ----------
    bundle : object
        What the factories are asked about; a `Bundle`, or what they else understand.
    registry : Registry
        Its built-in factories are registered first.
    env : mapping, optional
        Where `ELIZA_LLM_BACKEND` is looked up, which is a hard choice unless it is
        empty; by default the environment of the process, as it is now.
    need : iterable of str
        What the backend must provide: "mask", "forced_run", "rollback", "tree".
    backend : str, optional
        A hard choice by the caller, which comes before that of the environment.
    default : Factory, optional
        That of llama.cpp, where the registry has none.

    Returns
    -------
    USE, DEFAULT or ERROR
        `DEFAULT` for a hard choice of llama.cpp, and where no other factory has a rank
        above 0, is available, provides what is needed and can serve the bundle; of
        several, the one with the highest rank, and of those the one registered first.
        `ERROR` where a hard choice cannot be met.

    Raises
    ------
    InvalidArgument, InvalidType
        Something about the arguments. A factory's exceptions do not pass through:
        in a hard choice they make an `ERROR`, and else they are logged, and it is not
        selected.
    """
    cdef tuple needs = read_needs(need)
    registry.register_builtins()
    cdef Entry entry = registry.find("llama.cpp")
    if entry is not None:
        default = entry.factory
    if backend is not None:
        if not isinstance(backend, str):
            raise InvalidType(f"backend is {backend!r}; it is a text, or None")
        label = f"backend={said(backend)}"
        return take_named(registry, backend, label, bundle, needs, default)
    name = read_variable(env)
    if name:
        plain = name.isprintable() and name == name.strip() and len(name) <= 60
        label = f"{VARIABLE}={name if plain else said(name)}"
        return take_named(registry, name, label, bundle, needs, default)
    entry = take_best(registry, bundle, needs)
    if entry is not None:
        return USE(entry.factory)
    return take_default(default, needs, "llama.cpp")
