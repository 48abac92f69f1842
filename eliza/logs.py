"""The logger `eliza` and those below it: silent until an application wants them."""

from __future__ import annotations

import logging

__all__ = ["get_logger"]


def get_logger(name: str) -> logging.Logger:
    """Return a logger; nothing of it is printed where nobody set up any logging.

    Parameters
    ----------
    name : str
        "eliza", or a name below it.

    Returns
    -------
    logging.Logger
    """
    top = logging.getLogger("eliza")
    if not any(isinstance(handler, logging.NullHandler) for handler in top.handlers):
        top.addHandler(logging.NullHandler())
    return logging.getLogger(name)
