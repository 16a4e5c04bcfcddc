"""All sessions of this verifier: who runs, who queues, who may draft for whom."""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import Iterator

from opentelemetry.context import Context

from forerun.core.types import FinishReason, Settled
from forerun.errors import FailedPrecondition, NotFound, Overloaded, PermissionRefused, Superseded
from verifier_service.session import DecodeOrder, Session

RETRY_AFTER_S = 1.0


class Sessions:
    """Admits, finds and ends sessions. Lives on the event loop; the scheduler takes its work from here.

    Invariant: a session id is in `running` or `queued` at most once, under its highest epoch.
    """

    def __init__(self, *, max_sessions: int, max_queue: int, window: int) -> None:
        self.running: dict[str, Session] = {}
        self.queued: deque[Session] = deque()
        self.ended: deque[Session] = deque()  # known to the engine, to be closed there
        self.changed = asyncio.Event()  # something the scheduler should look at
        self.heard = asyncio.Event()  # a drafter spoke
        self._max_sessions = max_sessions
        self._max_queue = max_queue
        self._window = window

    def __iter__(self) -> Iterator[Session]:
        yield from self.running.values()
        yield from self.queued

    def admit(self, order: DecodeOrder, trace: Context) -> Session:
        """Take a session in; an older epoch of it ends with ABORTED.

        Raises FailedPrecondition for an epoch not higher than a live one, Overloaded when the queue is full.
        """
        old = self._by_id(order.session_id)
        if old is not None:
            if order.epoch <= old.order.epoch:
                raise FailedPrecondition(
                    f"session {order.session_id} runs under epoch {old.order.epoch}; {order.epoch} is not higher",
                    reason="OLD_EPOCH",
                    metadata={"epoch": str(old.order.epoch)},
                )
            old.fail(Superseded(f"epoch {order.epoch} took session {order.session_id} over"))
            self.end(old, FinishReason.CANCELLED)
        session = Session(order, self._window, trace)
        if order.already_over is not FinishReason.NONE:
            session.finished = True  # never in a pass, which would settle a token past the end
            session.tell(Settled(session.base, (), (), order.already_over))
            return session
        if len(self.running) < self._max_sessions:
            self.running[session.id] = session
        elif len(self.queued) < self._max_queue:
            self.queued.append(session)
        else:
            raise Overloaded(
                f"{len(self.running)} sessions run and {len(self.queued)} wait; the queue is full",
                reason="QUEUE_FULL",
                retry_after_s=RETRY_AFTER_S,
            )
        self.changed.set()
        return session

    def find(self, session_id: str, epoch: int, attach_key: bytes) -> Session:
        """Return the live session a drafter names, if its key and epoch are right."""
        session = self._by_id(session_id)
        if session is None:
            raise NotFound(f"no session {session_id} is being decoded here", reason="SESSION_NOT_FOUND")
        if epoch != session.order.epoch:
            raise FailedPrecondition(
                f"session {session_id} runs under epoch {session.order.epoch}, not {epoch}",
                reason="OLD_EPOCH",
                metadata={"epoch": str(session.order.epoch)},
            )
        if not hmac.compare_digest(attach_key, session.attach_key):
            raise PermissionRefused(f"wrong attach key for session {session_id}", reason="WRONG_ATTACH_KEY")
        return session

    def end(self, session: Session, reason: FinishReason) -> None:
        """Take a session out of all passes from the next one on; its drafters hear why."""
        if session.finished:
            return
        session.finished = True
        if self.running.get(session.id) is session:
            del self.running[session.id]
        elif session in self.queued:
            self.queued.remove(session)
        if session.opened:
            self.ended.append(session)
        session.end_streams(reason)
        while self.queued and len(self.running) < self._max_sessions:
            waiting = self.queued.popleft()
            self.running[waiting.id] = waiting
        self.changed.set()

    def set_back(self, session: Session) -> None:
        """Take a running session's KV; it queues first in line and is computed anew once another one ends."""
        self.ended.append(session)
        del self.running[session.id]
        self.queued.appendleft(session)
        session.opened, session.computed = False, 0
        self.changed.set()

    def _by_id(self, session_id: str) -> Session | None:
        return self.running.get(session_id) or next((s for s in self.queued if s.id == session_id), None)
