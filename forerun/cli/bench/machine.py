"""What else this machine does while it measures."""

from __future__ import annotations

import os
import time
from pathlib import Path

from forerun.cli.stack import Stack
from forerun.engine.cores import usable_cores


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
