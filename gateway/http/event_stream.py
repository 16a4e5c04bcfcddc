"""Server-sent events over one response (WHATWG HTML, section 9.2).

The response owns its frames: when the client goes away, or the server stops, they are closed, which
detaches the answer they came from. Nothing is pulled before the last frame was taken by the connection, so
a client that does not read holds back emission and nothing else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.door import Events

# Shorter than the idle time-outs of common proxies (60 s); a comment, which clients skip.
KEEPALIVE_S = 15.0
_KEEPALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def frame(content: dict[str, Any], event_id: int | None = None) -> bytes:
    """One event as bytes. `event_id`: what a client that reconnects sends as Last-Event-ID."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


async def disconnected(receive: Receive) -> None:
    """Return when the client is gone; what else it sends is skipped."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends frames as they come, and a comment whenever none came for `keepalive_s`.

    In the end, however it comes, closes `frames` and then `source`, from which they are made.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        source: Events,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._frames = frames
        self._source = source
        self._keepalive_s = keepalive_s
        # Proxies that buffer would turn a stream into a block.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                await writing
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            await self._frames.aclose()
            await self._source.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while (content := await self._next(send)) is not None:
            await send({"type": "http.response.body", "body": content, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _next(self, send: Send) -> bytes | None:
        """The next frame, or None at the end; keeps the connection alive meanwhile."""
        step = asyncio.create_task(self._pull())
        try:
            while not (await asyncio.wait({step}, timeout=self._keepalive_s))[0]:
                await send({"type": "http.response.body", "body": _KEEPALIVE, "more_body": True})
        finally:
            # A generator can only be closed when it is not running.
            if not step.done():
                step.cancel()
                await asyncio.wait({step})
        return await step

    async def _pull(self) -> bytes | None:
        return await anext(self._frames, None)
