"""Ctrl-C before there is anything to clean up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def silent_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once with status 130 and nothing said.

    For imports only: a KeyboardInterrupt in the midst of one is a traceback, or lost in a C extension.
    """
    before = signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
