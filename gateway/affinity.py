"""Which replica a session used last."""

from __future__ import annotations

from collections import OrderedDict

# Older sessions are forgotten here; the store still names their verifier.
MAX_SESSIONS = 10_000


class Affinity:
    """Session id → address of the replica that holds its KV cache; the least recently used are forgotten."""

    def __init__(self, limit: int = MAX_SESSIONS) -> None:
        self._limit = limit
        self._addresses: OrderedDict[str, str] = OrderedDict()

    def of(self, session_id: str) -> str:
        """The session's replica, or ""."""
        return self._addresses.get(session_id, "")

    def remember(self, session_id: str, address: str) -> None:
        """The session uses this replica from now on."""
        self._addresses[session_id] = address
        self._addresses.move_to_end(session_id)
        if len(self._addresses) > self._limit:
            self._addresses.popitem(last=False)
