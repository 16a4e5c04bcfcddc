"""One verifier or drafter process as the gateway sees it: channel, health, what it serves, load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.core.types import ModelInfo
from forerun.errors import ForerunError, Unavailable
from forerun.wire.trouble import reason_of

# A lost replica is dialled again after these; one that lasted `STEADY_S` starts over at the first.
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0
STEADY_S = 10.0
# What a healthy replica needs to describe itself.
DESCRIBE_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Description:
    """What a replica serves. `source`: of drafters, the name of what drafts."""

    model: ModelInfo
    source: str = ""


Describe = Callable[[grpc.aio.Channel, float], Awaitable[Description]]


class Connection:
    """A channel and the calls that use it; closed once it is retired and the last of them has ended."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def in_use(self) -> Iterator[grpc.aio.Channel]:
        self.num_running += 1
        self._idle.clear()
        try:
            yield self.channel
        finally:
            self.num_running -= 1
            if self.num_running == 0:
                self._idle.set()

    async def retire(self) -> None:
        """Let the running calls end, then close the channel."""
        await self._idle.wait()
        await self.channel.close()

    def abandon(self) -> None:
        """Let `retire` wait no longer for calls: closing the channel cancels them."""
        self._idle.set()


class Replica:
    """Follows one process by grpc.health.v1 `Watch`.

    Invariants: `model` is set exactly while the process says SERVING and has described itself since it last
    said so; `trouble` is why the last attempt to reach it failed, and "" before any has failed and once it
    answers; every watch begins on a channel of its own, so a process that came back is never spoken to over
    what its predecessor left behind.
    """

    def __init__(
        self,
        address: str,
        service: str,
        describe: Describe,
        dial: Callable[[], grpc.aio.Channel],
        on_change: Callable[[], None],
    ) -> None:
        """Nothing is dialled before `run`. `service`: the full name whose health counts."""
        self.address = address
        self.model: ModelInfo | None = None
        self.source = ""
        self.last_model: ModelInfo | None = None  # what it served when it last served
        self.trouble = ""
        self._service = service
        self._describe = describe
        self._dial = dial
        self._on_change = on_change
        self._connection: Connection | None = None
        self._retiring: dict[asyncio.Task[None], Connection] = {}
        self._attempt: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._refusals: set[str] = set()
        self._log = structlog.get_logger("gateway.router").bind(of=service, address=address)

    @property
    def num_running(self) -> int:
        """Calls inside `in_use` on the current channel."""
        return self._connection.num_running if self._connection else 0

    @contextmanager
    def in_use(self) -> Iterator[grpc.aio.Channel]:
        """Counts as load; yields a channel that stays open inside, whatever the replica's health does.

        Raises Unavailable when the replica was lost and is not dialled again yet.
        """
        if self._connection is None:
            raise Unavailable(f"{self.address} is not connected", reason="REPLICA_LOST")
        with self._connection.in_use() as channel:
            yield channel

    def report_failure(self) -> None:
        """Keep it out until a new watch on a new channel says SERVING; running calls go on."""
        self._set(None)
        if self._attempt is not None:
            self._attempt.cancel()

    def is_new_refusal(self, reason: str) -> bool:
        """Whether it refuses a session for this reason for the first time; remembered from now on."""
        is_new = reason not in self._refusals
        self._refusals.add(reason)
        return is_new

    def leave(self) -> None:
        """Be chosen no more: `run` returns when the calls that run have ended."""
        self._is_leaving = True
        self.report_failure()

    async def run(self) -> None:
        """Watch until cancelled or told to leave; then every channel is closed."""
        loop = asyncio.get_running_loop()
        delay = FIRST_RETRY_S
        try:
            while not self._is_leaving:
                began = loop.time()
                await self._watch_on_new_channel()
                delay = FIRST_RETRY_S if loop.time() - began > STEADY_S else min(delay * 2, LAST_RETRY_S)
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            await asyncio.gather(*self._retiring)
        finally:
            for connection in self._retiring.values():
                connection.abandon()
            await asyncio.gather(*self._retiring)

    async def _watch_on_new_channel(self) -> None:
        connection = self._connection = Connection(self._dial())
        attempt = self._attempt = asyncio.create_task(self._watch(connection))
        try:
            await asyncio.wait([attempt])
            error = None if attempt.cancelled() else attempt.exception()
            if isinstance(error, grpc.aio.AioRpcError | ForerunError):
                self._log.debug("watch ended", error=str(error))
                self._set_trouble(reason_of(error))
            elif error is not None:
                self._log.error("watch failed", exc_info=error)
        finally:
            self._connection = None
            self._set(None)
            attempt.cancel()
            retiring = asyncio.create_task(connection.retire())
            self._retiring[retiring] = connection
            retiring.add_done_callback(self._retiring.pop)

    async def _watch(self, connection: Connection) -> None:
        stub = health_pb2_grpc.HealthStub(connection.channel)  # type: ignore[no-untyped-call]
        async for reply in stub.Watch(health_pb2.HealthCheckRequest(service=self._service)):
            is_stranger = reply.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            self._set_trouble(f"does not serve {self._service}" if is_stranger else "")
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                self._set(await self._describe(connection.channel, DESCRIBE_DEADLINE_S))
            else:
                self._set(None)

    def _set(self, description: Description | None) -> None:
        model = description.model if description else None
        if model == self.model:
            return
        self.model = model
        if description is not None:
            self.last_model, self.source = description.model, description.source
        self._log.info("replica serves" if model else "replica lost", model=model.name if model else "")
        self._on_change()

    def _set_trouble(self, reason: str) -> None:
        if reason == self.trouble:
            return
        self.trouble = reason
        if reason:
            self._log.warning("replica not reached", reason=reason)
        self._on_change()
