"""The machine that measures: what it is, and what else it does meanwhile."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from forerun.cli.stack import Stack
from forerun.engine.cores import usable_cores

# What decides how fast a matrix product can be on x86-64.
TELLING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile")
PACKAGES = ("forerun", "torch", "transformers", "grpcio", "llama-cpp-python")


def facts() -> dict[str, Any]:
    """Return what is needed to judge, or repeat, a measurement on this machine."""
    processor = _processor()
    return {
        "processor": processor.get("model name") or platform.processor() or platform.machine(),
        "instructions": [flag for flag in TELLING_FLAGS if flag in processor.get("flags", "").split()],
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _processor() -> dict[str, str]:
    """Return what the system says of the first core; nothing where it says nothing."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Bystanders:
    """Counts, from its making on, the processor time of everything that is not part of a run. Linux; else nothing."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._started = time.perf_counter()
        self._before = self._others_s()

    def share(self) -> float:
        """Return how much of the machine's processor time others took so far, 0 to 1."""
        elapsed = (time.perf_counter() - self._started) * usable_cores()
        return max(0.0, self._others_s() - self._before) / elapsed

    def _others_s(self) -> float:
        return _busy_s() - time.process_time() - self._stack.cpu_seconds()


def _busy_s() -> float:
    """Processor seconds of all processes since the machine started; 0 where the system does not say."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq = (
            int(field) for field in Path("/proc/stat").read_text().split()[1:8]
        )
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
