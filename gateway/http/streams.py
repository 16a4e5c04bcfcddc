"""Answers as the frames of a stream, and whole ones for clients that wait.

Nothing here closes the events it reads: whoever asked the gateway for them does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import structlog
from fastapi import Request

from forerun.errors import ForerunError, InternalFault
from gateway.events import Delta, Event, Finished, Opened
from gateway.http.answers import Shape
from gateway.http.errors import body_of, error_object
from gateway.http.event_stream import DONE, disconnected, frame
from gateway.http.session_events import delta_object, finished_object, opened_object

# A JSON object and the offset from which the session's stream goes on after it.
Chunk = tuple[dict[str, Any], int]


async def _in_order(events: AsyncIterator[Event]) -> AsyncGenerator[tuple[Opened, Event], None]:
    """Each event with the session it belongs to.

    Raises InternalFault for an answer without beginning or end.
    """
    opened: Opened | None = None
    async for event in events:
        opened = event if isinstance(event, Opened) else opened
        if opened is None:
            break
        yield opened, event
        if isinstance(event, Finished):
            return
    raise InternalFault("the answer broke off")


async def completion_chunks(
    events: AsyncIterator[Event], shape: Shape, *, includes_usage: bool
) -> AsyncGenerator[Chunk, None]:
    """The chunks OpenAI's clients expect; with usage asked for, each but the last says that it has none."""
    no_usage: dict[str, Any] = {"usage": None} if includes_usage else {}
    async with aclosing(_in_order(events)) as ordered:
        async for opened, event in ordered:
            if isinstance(event, Opened):
                yield shape.first(opened) | no_usage, 0
                continue
            offset = _offset_after(event)
            if event.text:
                yield shape.piece(opened, event.text) | no_usage, offset
            if isinstance(event, Finished):
                yield shape.last(opened, event) | no_usage, offset
                if includes_usage:
                    yield shape.counts(opened, event), offset


async def session_chunks(events: AsyncIterator[Event], offset: int) -> AsyncGenerator[Chunk, None]:
    """A session's own events from `offset` on."""
    async with aclosing(_in_order(events)) as ordered:
        async for opened, event in ordered:
            if isinstance(event, Opened):
                yield opened_object(opened), offset
            elif isinstance(event, Delta):
                yield delta_object(event), _offset_after(event)
            else:
                yield finished_object(opened, event), _offset_after(event)


async def frames(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[bytes, None]:
    """The chunks as frames, then [DONE]; a failure on the way is the last frame before it."""
    try:
        async with aclosing(chunks):
            async for content, offset in chunks:
                yield frame(content, offset)
    except ForerunError as error:
        yield frame(body_of(error))
    except Exception:  # noqa: BLE001 - logged and answered
        # The status went out with the first frame: the stream itself is the only place left to say it.
        structlog.get_logger("gateway.http").exception("stream failed")
        yield frame(error_object("internal fault", 500, code="internal_fault"))
    yield DONE


async def whole_answer(events: AsyncIterator[Event], shape: Shape) -> dict[str, Any]:
    """The answer in one object, once it is complete."""
    text = ""
    async with aclosing(_in_order(events)) as ordered:
        async for opened, event in ordered:
            if isinstance(event, Opened):
                continue
            text += event.text
            if isinstance(event, Finished):
                return shape.whole(opened, text, event)
    raise InternalFault("the answer broke off")


async def unless_gone(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any] | None:
    """What `work` gives; None when the client left before, and then `work` is cancelled."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _offset_after(event: Delta | Finished) -> int:
    if isinstance(event, Finished):
        return event.usage.completion_tokens
    return event.offset + len(event.token_ids)
