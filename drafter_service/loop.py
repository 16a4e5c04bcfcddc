"""The drafting loop: one step after another over all sessions that have credits left.

    who has room → the source draws for all of them together → complete bursts go out

Read `DraftingLoop.run`. Verdicts change the sessions between steps; a session tells by itself whether what
was drawn for it still fits.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import structlog
from opentelemetry.context import Context

from drafter_service import metrics
from drafter_service.session import DraftSession
from drafter_service.sources.source import Ask, Drawn, Source
from drafter_service.tracing import trace_burst
from forerun.core.types import DraftMessage
from forerun.errors import ForerunError, InternalFault

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message on its way out, held back for `delay_s`."""

    message: DraftMessage
    delay_s: float


@dataclass(slots=True, eq=False)
class Attachment:
    """One open Verify stream: its session, and what waits to be sent on it (or the fault that ends it)."""

    session: DraftSession
    trace: Context = field(default_factory=Context)
    outbox: asyncio.Queue[Parcel | ForerunError] = field(default_factory=asyncio.Queue)
    burst_began_ns: int = 0  # Unix time of the step that drew the first token of the burst under way


class DraftingLoop:
    """Draws for every attachment that joined, as long as its session asks for more."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._attachments: list[Attachment] = []
        self._stirred = asyncio.Event()

    def join(self, attachment: Attachment) -> None:
        """Draft for it from the next step on."""
        self._attachments.append(attachment)
        self._stirred.set()

    def leave(self, attachment: Attachment) -> None:
        """Draft for it no more; what is being drawn is dropped. Unknown ones: no effect."""
        if attachment in self._attachments:
            self._attachments.remove(attachment)

    def stir(self) -> None:
        """A session changed: look again."""
        self._stirred.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            wishes = [(one, ask) for one in self._attachments if (ask := one.session.ask()) is not None]
            if not wishes:
                self._stirred.clear()
                await self._stirred.wait()
                continue
            began_ns = time.time_ns()
            try:
                answers = await self._source.draw([ask for _, ask in wishes])
            except Exception as fault:
                log.exception("drawing failed", sessions=[ask.key for _, ask in wishes])
                self._fail([one for one, _ in wishes], fault)
                continue
            for (attachment, ask), drawn in zip(wishes, answers, strict=True):
                self._take(attachment, ask, drawn, began_ns)
            # A source that answers at once would otherwise keep verdicts from being read.
            await asyncio.sleep(0)

    def _take(self, attachment: Attachment, ask: Ask, drawn: Drawn, began_ns: int) -> None:
        if attachment not in self._attachments:  # it left while this was drawn
            return
        if not attachment.session.drawing:
            attachment.burst_began_ns = began_ns
        message = attachment.session.take(ask, drawn)
        if message is None:
            return
        if message.token_ids:
            trace_burst(attachment.trace, message, attachment.burst_began_ns)
            metrics.DRAFTED_TOKENS.inc(len(message.token_ids))
            metrics.MESSAGES.inc()
        attachment.outbox.put_nowait(Parcel(message, drawn.delay_s))

    def _fail(self, attachments: list[Attachment], fault: Exception) -> None:
        error = fault if isinstance(fault, ForerunError) else None
        for attachment in attachments:
            self.leave(attachment)
            attachment.outbox.put_nowait(
                error or InternalFault("the drafting model failed", reason="DRAFTING_FAILED")
            )
