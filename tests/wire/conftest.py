"""A service of our own protocol that does what a test tells it, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from forerun.v1 import drafter_pb2, drafter_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.server import Server
from forerun.wire.tls import Tls

PLAIN = Tls()
SERVICE = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name


@dataclass
class Scripted(drafter_pb2_grpc.DrafterServiceServicer):
    """GetModel runs `unary`; Assist answers once, then waits for `release` and runs `unary`."""

    unary: Callable[[Any], Any] = lambda _context: None
    release: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    contexts: list[Any] = field(default_factory=list)

    async def GetModel(self, request, context):
        self.contexts.append(context)
        result = self.unary(context)
        if asyncio.iscoroutine(result):
            await result
        return drafter_pb2.DrafterServiceGetModelResponse(source="scripted")

    async def Assist(self, request, context):
        try:
            yield drafter_pb2.AssistResponse(num_drafted=1)
            await self.release.wait()
            self.unary(context)
            yield drafter_pb2.AssistResponse(num_drafted=2)
        finally:
            self.closed.set()


@dataclass
class Running:
    servicer: Scripted
    server: Server
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stub(self, channel) -> Any:
        return drafter_pb2_grpc.DrafterServiceStub(channel)


@pytest.fixture
async def start() -> AsyncIterator[Any]:
    """Start a scripted server; it is stopped after the test."""
    running: list[Running] = []

    async def make(tls: Tls = PLAIN, **options: Any) -> Running:
        server = Server("127.0.0.1:0", tls, insecure=False, services=[SERVICE], **options)
        servicer = Scripted()
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)
        running.append(Running(servicer, server, await server.start()))
        return running[-1]

    yield make
    for each in running:
        await each.server.drain_and_stop(0)


@pytest.fixture
async def dial() -> AsyncIterator[Any]:
    """Open a channel; it is closed after the test."""
    channels = []

    def make(address: str, tls: Tls = PLAIN):
        channels.append(open_channel(address, tls))
        return channels[-1]

    yield make
    for channel in channels:
        await channel.close()
