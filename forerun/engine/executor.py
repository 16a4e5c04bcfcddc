"""The one thread that owns a device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call to be made, and where what it returns is awaited."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    function: Callable[[], Any]

    def make(self) -> None:
        """Make the call, unless it was cancelled; its future has its end."""
        if self.future.cancelled():
            return
        try:
            end = partial(self._returned, self.function())
        except BaseException as fault:  # noqa: BLE001 - whatever it is, it is the caller's
            end = partial(self._raised, fault)
        self._tell(end)

    def drop(self) -> None:
        """It is never made; its future is cancelled."""
        self._tell(self.future.cancel)

    def _tell(self, end: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(end)
        except RuntimeError:  # the loop is closed: nobody waits
            if not self.loop.is_closed():
                raise

    def _returned(self, value: object) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _raised(self, fault: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(fault)


class EngineThread:
    """Runs calls one after another on a thread of its own, so that the event loop never computes.

    The device waits while a call is on its way here, and its tokens while its end is on the way back, so both are as
    short as can be: one queue, one callback. Through an executor they take twice as long (docs/adr/0009).
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Begin `function(*args, **kwargs)` on the thread, after the calls before it; await what it returns.

        A call that has begun runs to its end even if the future is cancelled; one that has not is dropped. Raises
        RuntimeError once closed.
        """
        if self._closed:
            raise RuntimeError("the engine's thread has ended")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(_Call(loop, future, partial(function, *args, **kwargs)))
        return future

    def begin(
        self, within_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """As `run`; returns once the call has begun, or after `within_s`, holding the event loop up until then.

        A call needs the interpreter to begin: what the loop does first, the device waits for.
        """
        waiting = threading.Lock()
        waiting.acquire()

        def call() -> T:
            waiting.release()
            return function(*args, **kwargs)

        future = self.run(call)
        waiting.acquire(timeout=within_s)
        return future

    def close(self) -> None:
        """The call in progress is over and the thread is gone; calls that waited are cancelled."""
        self._closed = True
        with suppress(Empty):
            while call := self._calls.get_nowait():
                call.drop()
        self._calls.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while call := self._calls.get():
            call.make()
            del call  # what it returned is not kept until the next one comes
