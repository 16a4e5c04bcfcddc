"""Assemble the verifier and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

import structlog

from forerun.core.pacing import Pacing
from forerun.core.types import TokenizerFiles
from forerun.engine.executor import EngineThread
from forerun.engine.interface import Engine
from forerun.engine.load import load_engine
from forerun.engine.pass_times import pass_times
from forerun.v1 import verifier_pb2_grpc as rpc
from forerun.wire import telemetry
from forerun.wire.address import Address, advertised
from forerun.wire.loading_log import LoadingLog
from forerun.wire.server import Server
from forerun.wire.tls import Tls
from verifier_service import metrics
from verifier_service.scheduler import Scheduler
from verifier_service.servicer import Verifier
from verifier_service.sessions import Sessions
from verifier_service.settings import Settings

SERVICE = "forerun.v1.VerifierService"
MIB = 1024 * 1024

log = structlog.get_logger()


async def serve(settings: Settings, announce: Callable[[str], None]) -> int:
    """Load, answer, and on SIGTERM or SIGINT drain; return the exit status.

    `announce` is called with the bound address once sessions are taken. Raises ForerunError for settings that
    cannot be served (unknown model, port taken, no TLS beyond loopback, wildcard address without
    `advertise`).
    """
    seen = telemetry.setup(
        "verifier",
        otlp_endpoint=settings.otlp_endpoint or None,
        metrics_port=settings.metrics_port or None,
        metrics_host=Address.parse(settings.listen, "listen").host,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    thread = EngineThread()
    try:
        server = _server(settings)
        advertised(settings.listen, 0, settings.advertise)  # refused now rather than after loading
        loading = LoadingLog()
        engine, tokenizer = await thread.run(_load, settings, loading)
        await _serve(settings, server, engine, tokenizer, thread, loading, stop, announce)
    finally:
        thread.close()
        seen.close()
    return 0


def _server(settings: Settings) -> Server:
    tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_ca)
    server = Server(
        settings.listen,
        tls,
        insecure=settings.insecure,
        services=(SERVICE,),
        health_port=settings.health_port or None,
    )
    server.check_free()  # refused now rather than after loading
    return server


def _load(settings: Settings, loading: LoadingLog) -> tuple[Engine, TokenizerFiles]:
    return load_engine(
        settings.model,
        name=settings.name,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads or None,
        pool_bytes=settings.kv_pool_mib * MIB or None,
        progress=loading,
    )


async def _serve(
    settings: Settings,
    server: Server,
    engine: Engine,
    tokenizer: TokenizerFiles,
    thread: EngineThread,
    loading: LoadingLog,
    stop: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    sessions = Sessions(
        max_sessions=settings.max_sessions, max_queue=settings.max_queue, window=settings.window
    )
    metrics.watch(
        running=lambda: len(sessions.running),
        queued=lambda: len(sessions.queued),
        kv_held=lambda: engine.held,
        kv_positions=engine.capacity,
    )
    loading("measuring passes", 0.0)
    pacing = Pacing()
    pacing.cost.begin(await thread.run(pass_times, engine))
    loading("measuring passes", 1.0)
    verifier = Verifier(
        engine.model,
        tokenizer,
        sessions,
        pacing,
        capacity=engine.capacity,
        rest_s=settings.flush_ms / 1000,
        trusted_drafters=[name.strip() for name in settings.trusted_drafters.split(",") if name.strip()],
    )
    rpc.add_VerifierServiceServicer_to_server(verifier, server.grpc)
    port = await server.start()
    verifier.advertised_address = advertised(settings.listen, port, settings.advertise)
    scheduler = Scheduler(engine, thread, sessions, pacing, lookup=settings.lookup)
    passes = asyncio.create_task(scheduler.run(), name="scheduler")
    stopping = asyncio.create_task(stop.wait())
    try:
        await server.set_serving(True)
        bound = str(Address(Address.parse(settings.listen, "listen").host, port))
        log.info("ready", address=bound, model=engine.model.name, exact=engine.model.exact.value)
        announce(bound)
        await asyncio.wait({passes, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await server.drain_and_stop(settings.grace_s)
    finally:
        stopping.cancel()
        passes.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await passes
