"""Assemble the drafter and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from functools import partial

import structlog

from drafter_service.allow_list import AllowList
from drafter_service.channels import Channels
from drafter_service.loop import DraftingLoop
from drafter_service.servicer import Drafter
from drafter_service.settings import Settings
from drafter_service.sources.load import open_source
from drafter_service.sources.source import Source
from forerun.engine.interface import Engine
from forerun.v1 import drafter_pb2_grpc as rpc
from forerun.wire import telemetry
from forerun.wire.address import Address
from forerun.wire.loading_log import LoadingLog
from forerun.wire.server import Server
from forerun.wire.tls import Tls

SERVICE = "forerun.v1.DrafterService"
MIB = 1024 * 1024

log = structlog.get_logger()


async def serve(settings: Settings, announce: Callable[[str], None]) -> int:
    """Load, answer, and on SIGTERM or SIGINT drain; return the exit status.

    `announce` is called with the bound address once sessions are taken. Raises ForerunError for settings
    that cannot be served (unknown source or model, port taken, no TLS beyond loopback).
    """
    seen = telemetry.setup(
        "drafter",
        otlp_endpoint=settings.otlp_endpoint or None,
        metrics_port=settings.metrics_port or None,
        metrics_host=Address.parse(settings.listen, "listen").host,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_ca)
        server = Server(
            settings.listen,
            tls,
            insecure=settings.insecure,
            services=(SERVICE,),
            health_port=settings.health_port or None,
        )
        allowed = AllowList.parse(
            [text.strip() for text in settings.allow_verifiers.split(",") if text.strip()]
        )
        server.check_free()  # refused now rather than after loading
        async with open_source(settings.source, partial(_load, settings)) as source:
            await _serve(settings, server, source, Channels(tls), allowed, stop, announce)
    finally:
        seen.close()
    return 0


def _load(settings: Settings, spec: str) -> Engine:
    # Imported only here: look-up drafters run where no engine is installed.
    from forerun.engine.load import load_engine  # noqa: PLC0415

    engine, _ = load_engine(
        spec,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads or None,
        pool_bytes=settings.kv_pool_mib * MIB or None,
        progress=LoadingLog(),
    )
    return engine


async def _serve(
    settings: Settings,
    server: Server,
    source: Source,
    channels: Channels,
    allowed: AllowList,
    stop: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    loop = DraftingLoop(source)
    drafter = Drafter(
        source, loop, channels, name=settings.name, allowed=allowed, max_sessions=settings.max_sessions
    )
    rpc.add_DrafterServiceServicer_to_server(drafter, server.grpc)
    bound = str(Address(Address.parse(settings.listen, "listen").host, await server.start()))
    # A verifier lets a second attach of a name replace the first, so two drafters must not have one name.
    drafter.name = settings.name or f"{socket.gethostname()}/{bound}"
    steps = asyncio.create_task(loop.run(), name="drafting")
    stopping = asyncio.create_task(stop.wait())
    try:
        await server.set_serving(True)
        log.info("ready", address=bound, source=source.name, drafter=drafter.name)
        announce(bound)
        await asyncio.wait({steps, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await server.drain_and_stop(settings.grace_s)
    finally:
        stopping.cancel()
        steps.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await steps
