"""A gateway that plays a script, served by a real uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from forerun.core.types import Exactness, FinishReason, Mode, ModelInfo, Origin
from forerun.errors import ForerunError, OffsetBeyondEnd
from forerun.wire.tls import Tls
from gateway.api_keys import ApiKeys
from gateway.events import Delta, Event, Finished, Opened, Speculation, Timings, Usage
from gateway.following import EventStream
from gateway.http.app import create_app
from gateway.http.server import HttpServer
from gateway.request import GenerationRequest, check

MODEL = ModelInfo(
    name="org/bell",
    revision="r1",
    vocab_fingerprint="ab" * 32,
    vocab_size=400,
    max_context=64,
    numerics="r1/f32/cpu",
    exact=Exactness.BITWISE,
    end_token_ids=(0,),
)
OPENED = Opened("s-1", Mode.COUPLED, 7, 5, MODEL)
DELTAS = (
    Delta(0, (11, 12), (Origin.PLAIN, Origin.DRAFTED), "The bell "),
    Delta(2, (13,), (Origin.CORRECTION,), ""),
    Delta(3, (14, 15), (Origin.DRAFTED, Origin.BONUS), "🦉 rings"),
)
FINISHED = Finished(
    FinishReason.LENGTH,
    Usage(5, 5),
    Speculation(passes=4, num_drafted=6, num_tested=5, num_accepted=3, acceptance_histogram=(1, 1, 1)),
    Timings(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    Exactness.BITWISE,
    ".",
)
TEXT = "The bell 🦉 rings."


class ScriptedGateway:
    """Plays `events` to whoever asks. `gate`: nothing after the first delta before it is set."""

    def __init__(self) -> None:
        self.events: list[Event | Exception] = [OPENED, *DELTAS, FINISHED]
        self.refusal: ForerunError | None = None
        self.requests: list[GenerationRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.detached = asyncio.Event()
        self.num_emitted = 0
        self._progress = asyncio.Condition()
        self.is_healthy = True

    async def generate(self, request: GenerationRequest) -> EventStream:
        check(request)
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        return EventStream(self._play(0), self.detached.set)

    async def resume(self, session_id: str, offset: int) -> EventStream:
        if offset > FINISHED.usage.completion_tokens:
            raise OffsetBeyondEnd("beyond the end", field="offset")
        self.events[0] = replace(OPENED, session_id=session_id)
        return EventStream(self._play(offset), self.detached.set)

    async def _play(self, offset: int) -> AsyncGenerator[Event, None]:
        for event in list(self.events):
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Delta) and event.offset < offset:
                continue
            if not isinstance(event, Opened) and event != DELTAS[0]:
                await self.gate.wait()
            async with self._progress:
                self.num_emitted += 1
                self._progress.notify_all()
            yield event

    async def until_emitted(self, number: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self.num_emitted >= number)

    def models(self) -> list[ModelInfo]:
        return [MODEL]

    async def healthy(self) -> bool:
        return self.is_healthy


class Stage:
    """Where one scripted gateway after another plays, so that many tests share a server."""

    def __init__(self) -> None:
        self.current = ScriptedGateway()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


@asynccontextmanager
async def served(gateway: Any, *keys: str, tls: Tls | None = None) -> AsyncIterator[str]:
    """The address of a real server in front of the gateway."""
    server = HttpServer(create_app(gateway, ApiKeys(keys)), "127.0.0.1:0", tls or Tls(), insecure=False)
    port = await server.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        await server.drain_and_stop(1)
