"""Work in a forked child, which must not hang there."""

from __future__ import annotations

import os
import time
import traceback

import pytest


def in_child(work, seconds=20):
    """Run work in a fork; fail if it fails, or takes longer."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


# Since 3.12 Python warns of what is tested here.
forks = pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
