"""Which factory serves a bundle: the rule, and what may go wrong with it.

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

from ._registry cimport Entry, in_order
from ._registry cimport Registry as Known
from ._selection cimport raised, said

import logging
import operator
import os

from ._registry import Registry
from ._selection import DEFAULT, ERROR, USE, Selection
from .errors import BundleError, InvalidArgument, InvalidType, NotSupported

__all__ = ["DEFAULT", "ERROR", "NEEDS", "USE", "VARIABLE", "Registry", "Selection"]
__all__ += ["select"]

#: The environment's hard choice.
VARIABLE = "ELIZA_LLM_BACKEND"

#: What a caller can need of a backend.
NEEDS = ("mask", "forced_run", "rollback", "tree")

cdef frozenset LLAMA = frozenset(("llama.cpp", "llamacpp", "llama"))
cdef object logger = logging.getLogger("eliza")


class Fault(Exception):
    """A factory that did not do what the protocol says."""


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
    if env is None:
        env = os.environ
    elif not hasattr(env, "get"):
        raise InvalidType(f"env is {said(env)}; give a mapping, such as os.environ")
    value = env.get(VARIABLE)
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
    Known registry, str name, str label, object bundle, tuple needs, object default
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


cdef object take_best(Known registry, object bundle, tuple needs):
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
    bundle, Known registry not None, env=None, need=(), *, backend=None, default=None
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
