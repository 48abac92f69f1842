"""The streaming C interface: see include/eliza_inference.h and docs/c_api.md.

`library.c` has the symbols and finds the interpreter, `_inference` is what they forward
to, `streams` does the work, in Python.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.resources import files

__all__ = ["abi_library", "describe"]


def abi_library() -> str:
    """Return the path of the library with the symbols of eliza_inference.h.

    Returns
    -------
    str
        For dlopen, ctypes, koffi, or a linker. It does not refer to any Python.
    """
    name = "libeliza_inference" + (".dylib" if sys.platform == "darwin" else ".so")
    return str(files("eliza.abi").joinpath(name))


def describe() -> dict[str, str | None]:
    """Return what a program that has no Python yet needs to host this one.

    Returns
    -------
    dict
        "library" is what it loads, "libpython" and "executable" are what it gives to
        `eliza_abi_init`, "include" is where the headers are. "libpython" is None where
        this Python was built without a shared library: then it cannot be hosted.
    """
    from eliza._capi import get_include

    return {
        "library": abi_library(),
        "libpython": _libpython(),
        "executable": sys.executable,
        "include": get_include(),
    }


def _libpython() -> str | None:
    folder = sysconfig.get_config_var("LIBDIR")
    for variable in ("INSTSONAME", "LDLIBRARY"):
        name = sysconfig.get_config_var(variable)
        if not (folder and name) or name.endswith(".a"):
            continue
        path: str = os.path.join(folder, os.path.basename(name))
        if os.path.exists(path):
            return path
    return None
