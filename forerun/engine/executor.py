"""The one thread that owns a device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class EngineThread:
    """Runs calls one after another on a thread of its own, so that the event loop never computes."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Begin `function(*args, **kwargs)` on the thread, after the calls before it; await what it returns.

        A call that has begun runs to its end even if the future is cancelled; one that has not is dropped.
        """
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def begin(
        self, within_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """As `run`; returns once the call has begun, or after `within_s`, holding the event loop up until then.

        A call needs the interpreter to begin: what the loop does first, the device waits for.
        """
        begun = threading.Event()

        def call() -> T:
            begun.set()
            return function(*args, **kwargs)

        future = self.run(call)
        begun.wait(within_s)
        return future

    def close(self) -> None:
        """The call in progress is over and the thread is gone; calls that waited are cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)
