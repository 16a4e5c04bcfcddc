"""How many threads a process takes when several share one machine."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_of_cores(num_processes: int) -> int:
    """Threads for each of `num_processes` busy processes on this machine, at least 1.

    Threads that wait for each other spin: two processes on the same cores are many times slower than on half as many
    each, so shares never overlap while there is a core a process.
    """
    return max(1, usable_cores() // max(1, num_processes))


def threads_to_use(asked: int | None = None) -> int:
    """`asked`, else $FORERUN_THREADS, else every usable core. Raises ValueError below 1."""
    said = os.environ.get("FORERUN_THREADS")
    threads = asked if asked is not None else int(said) if said else usable_cores()
    if threads < 1:
        raise ValueError(f"{threads} threads")
    return threads


def environment_for(threads: int) -> dict[str, str]:
    """Variables that make a child process use `threads` threads in every runtime."""
    return {"FORERUN_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
