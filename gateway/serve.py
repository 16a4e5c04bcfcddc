"""Assemble the gateway and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from forerun.core.types import Acceptance
from forerun.errors import ForerunError
from forerun.v1 import gateway_pb2_grpc as rpc
from forerun.wire import telemetry
from forerun.wire.address import Address
from forerun.wire.server import Server
from forerun.wire.tls import Tls
from gateway.api_keys import ApiKeys
from gateway.http.app import create_app
from gateway.http.server import HttpServer
from gateway.patience import Patience
from gateway.router import Router
from gateway.service import Gateway
from gateway.servicer import GATEWAY_SERVICE, GatewayServicer
from gateway.settings import Settings
from gateway.store.connection import masked
from gateway.store.store import Store

# A first verifier is waited for this long before the doors are said to be open; requests wait for one too.
FIRST_VERIFIER_S = 10.0
# What a client may need to read the end of an answer that was cut at the end of the grace period.
LAST_WORDS_S = 1.0
# While the store is away it is asked, and that it is away is said again, this often.
ASK_STORE_EVERY_S, REMIND_EVERY_S = 0.5, 30.0

T = TypeVar("T")

log = structlog.get_logger()


async def serve(settings: Settings, announce: Callable[[str, str], None]) -> int:
    """Answer, and on SIGTERM or SIGINT drain; return the exit status.

    `announce` is called with the bound HTTP and gRPC addresses. Raises ForerunError for settings that cannot be
    served (port taken, no TLS beyond loopback, an address or Redis URL that is none). Redis may come later: until it
    answers health says NOT_SERVING, the log says what is waited for, and nothing is announced. Verifiers too may come
    later.
    """
    seen = telemetry.setup(
        "gateway",
        otlp_endpoint=settings.otlp_endpoint or None,
        metrics_port=settings.metrics_port or None,
        metrics_host=Address.parse(settings.http, "http").host,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await _serve(settings, stop, announce)
    finally:
        seen.close()
    return 0


async def _serve(settings: Settings, stop: asyncio.Event, announce: Callable[[str, str], None]) -> None:
    tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_ca)
    keys = ApiKeys.from_file(settings.api_keys_file)
    store = Store(settings.redis_url, lease_s=settings.lease_s, ttl_s=settings.session_ttl_s)
    router = Router(settings.verifiers, settings.drafters, tls)
    gateway = Gateway(
        store,
        router,
        acceptance=Acceptance[settings.acceptance.upper()],
        patience=Patience(detach_grace_s=settings.detach_grace_s),
    )
    server = Server(
        settings.grpc,
        tls,
        insecure=settings.insecure,
        services=(GATEWAY_SERVICE,),
        health_port=settings.health_port or None,
        flag="grpc",
    )
    http = HttpServer(create_app(gateway, keys), settings.http, tls, insecure=settings.insecure)
    rpc.add_GatewayServiceServicer_to_server(GatewayServicer(gateway, keys), server.grpc)
    await router.start()
    try:
        await _run(settings, gateway, store, router, server, http, stop, announce)
    finally:
        await router.close()
        await store.close()


async def _run(
    settings: Settings,
    gateway: Gateway,
    store: Store,
    router: Router,
    server: Server,
    http: HttpServer,
    stop: asyncio.Event,
    announce: Callable[[str, str], None],
) -> None:
    grpc_address = str(Address(Address.parse(settings.grpc, "grpc").host, await server.start()))
    try:
        http_address = str(Address(Address.parse(settings.http, "http").host, await http.start()))
    except BaseException:
        await server.drain_and_stop(0)
        raise
    try:
        await _unless_told(_answering(store, settings.redis_url), stop)
        if await _unless_told(router.wait_ready(FIRST_VERIFIER_S), stop) is False:
            log.warning("no verifier yet", verifiers=settings.verifiers, reasons=router.troubles())
        if not stop.is_set():
            await server.set_serving(True)
            log.info("ready", http=http_address, grpc=grpc_address)
            announce(http_address, grpc_address)
        await stop.wait()
        log.info("draining", grace_s=settings.grace_s)
        grace_s = settings.grace_s
    except BaseException:
        grace_s = 0.0
        raise
    finally:
        # Health says NOT_SERVING and new calls are refused at once; answers go on until the grace is over, then
        # their leases are given up and their clients told to resume elsewhere.
        await asyncio.gather(
            gateway.drain(grace_s),
            server.drain_and_stop(grace_s + LAST_WORDS_S),
            http.drain_and_stop(grace_s + LAST_WORDS_S),
        )


async def _answering(store: Store, url: str) -> None:
    """Return once the store answers; say what is waited for until it does."""
    loop = asyncio.get_running_loop()
    said, say_again_at = "", 0.0
    while True:
        try:
            await store.ping()
        except ForerunError as error:
            why = str(error.__cause__ or error)
            if why != said or loop.time() >= say_again_at:
                log.warning("waiting for the session store (--redis-url)", store=masked(url), error=why)
                said, say_again_at = why, loop.time() + REMIND_EVERY_S
            await asyncio.sleep(ASK_STORE_EVERY_S)
        else:
            return


async def _unless_told(work: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """What `work` returns, or None if the signal to stop comes first, or came before."""
    working, told = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, told):
            task.cancel()
        await asyncio.gather(working, told, return_exceptions=True)
