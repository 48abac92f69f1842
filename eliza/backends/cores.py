"""How many threads a runtime should compute with."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["physical_cores"]

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> int:
    """Return the number of physical cores that this process may run on.

    Two threads on one core share its vector units: matrix products gain nothing from
    the second. The affinity of the process and the quota of its container count.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    cores = len({_core(cpu) for cpu in cpus})
    return max(1, min(cores, _quota() or cores))


def _core(cpu: int) -> tuple[str, str]:
    """Return what names the core of a logical CPU: its siblings share it."""
    topology = _CPUS / f"cpu{cpu}" / "topology"
    try:
        package = (topology / "physical_package_id").read_text()
        return package, (topology / "core_id").read_text()
    except OSError:
        return "", str(cpu)


def _quota() -> int | None:
    """Return how many CPUs' worth of time the container has, rounded down."""
    try:
        quota, period = _QUOTA.read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None
