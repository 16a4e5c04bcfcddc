"""Who reads along: how many clients each session has, and since when one has none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable


class Attendance:
    """Counts the clients of sessions; tells `on_deserted` of a session that had none for `grace_s`."""

    def __init__(self, grace_s: float, on_deserted: Callable[[str], None]) -> None:
        self._grace_s = grace_s
        self._on_deserted = on_deserted
        self._clients: Counter[str] = Counter()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def enter(self, session_id: str) -> None:
        """One client more."""
        self._clients[session_id] += 1
        self._disarm(session_id)

    def leave(self, session_id: str) -> None:
        """One client less; with the last the grace period begins."""
        self._clients[session_id] -= 1
        if not self._clients[session_id]:
            del self._clients[session_id]
            self.watch(session_id)

    def watch(self, session_id: str) -> None:
        """Begin the grace period anew if the session has no client now."""
        if session_id in self._clients:
            return
        self._disarm(session_id)
        loop = asyncio.get_running_loop()
        self._timers[session_id] = loop.call_later(self._grace_s, self._deserted, session_id)

    def forget(self, session_id: str) -> None:
        """The session needs no watching any more."""
        self._disarm(session_id)

    def _deserted(self, session_id: str) -> None:
        del self._timers[session_id]
        self._on_deserted(session_id)

    def _disarm(self, session_id: str) -> None:
        timer = self._timers.pop(session_id, None)
        if timer is not None:
            timer.cancel()
