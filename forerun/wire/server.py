"""A gRPC server as every service runs it: TLS or loopback, health, reflection, guards, an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from forerun.errors import FailedPrecondition, InvalidRequest
from forerun.wire.address import Address
from forerun.wire.binding import check_free
from forerun.wire.channel import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS, MAX_MESSAGE_BYTES, MAX_REPLY_BYTES
from forerun.wire.live_calls import LiveCalls
from forerun.wire.status import ServicerErrors
from forerun.wire.tls import Tls

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Permission for the clients' own pings; without it the third one in a silent stream ends the connection.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_REPLY_BYTES),
    # A second server on a port that is taken must fail, not share its connections.
    ("grpc.so_reuseport", 0),
)


class Server:
    """One service's server; made inside the event loop that runs it.

    Register servicers on `.grpc`, then `start`. Health is NOT_SERVING for every name in `services` (and for
    "", the whole server) until `set_serving(True)`. Refuses (InvalidRequest) an address beyond loopback
    without TLS unless `insecure`. `health_port`: a second port without TLS on the same host that answers
    health checks only, for probes that hold no certificate. `flag`: by which the address was given.
    """

    def __init__(
        self,
        address: str,
        tls: Tls,
        *,
        insecure: bool,
        services: Sequence[str],
        health_port: int | None = None,
        flag: str = "listen",
    ) -> None:
        self._address = Address.parse(address, flag)
        self._flag = flag
        self._tls = tls
        if not (self._address.is_loopback or tls.enabled or insecure):
            raise InvalidRequest(
                f"{address} can be reached from other machines: give --tls-cert, --tls-key and --tls-ca, "
                "or --insecure on a network that is trusted",
                reason="INSECURE_BIND",
                field=flag,
            )
        self._names = ("", *services)
        self._health_port = health_port
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._calls = LiveCalls()
        # Errors outermost: a call refused while draining gets its status the same way as any other.
        self.grpc = grpc.aio.server(interceptors=(ServicerErrors(), self._calls), options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)  # type: ignore[no-untyped-call]
        reflection.enable_server_reflection(  # type: ignore[no-untyped-call]
            (*services, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc
        )
        self._probes: grpc.aio.Server | None = None

    @property
    def live_calls(self) -> int:
        """Calls of our own services in progress."""
        return self._calls.count

    def check_free(self) -> None:
        """Return if `start` would find its ports free and its certificate readable; else raise as it would."""
        self._credentials()
        check_free(self._address, self._flag)
        if self._health_port is not None:
            check_free(Address(self._address.host, self._health_port), "health-port")

    async def start(self) -> int:
        """Listen; return the bound port. Raises FailedPrecondition (CANNOT_BIND) when the port is taken."""
        self.check_free()
        port = _bind(self.grpc, self._address, self._credentials())
        await self.set_serving(False)
        if self._health_port is not None:
            self._probes = grpc.aio.server(options=SERVER_OPTIONS)
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._probes)  # type: ignore[no-untyped-call]
            self._health_port = _bind(self._probes, Address(self._address.host, self._health_port), None)
            await self._probes.start()
        await self.grpc.start()
        return port

    @property
    def health_port(self) -> int | None:
        """The bound port of the probes; None without one."""
        return self._health_port

    def _credentials(self) -> grpc.ServerCredentials | None:
        return self._tls.server_credentials() if self._tls.enabled else None

    async def set_serving(self, serving: bool) -> None:
        """Tell health checks and watches, for every service, whether calls are welcome."""
        status = health_pb2.HealthCheckResponse.ServingStatus
        for name in self._names:
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def drain_and_stop(self, grace_s: float) -> None:
        """Say NOT_SERVING, refuse new calls, let live ones end for up to `grace_s`, cut the rest, close."""
        await self._health.enter_graceful_shutdown()
        self._calls.draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._calls.wait_idle()
        except TimeoutError:
            # What still runs is cut: its peers resume it elsewhere.
            pass
        await self.grpc.stop(None)
        if self._probes is not None:
            await self._probes.stop(None)


def _bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None) -> int:
    """Bind an address that was free a moment ago; return its port."""
    try:
        if credentials is None:
            return server.add_insecure_port(str(address))
        return server.add_secure_port(str(address), credentials)
    except RuntimeError as error:
        # gRPC says the same whatever the reason; it has logged which.
        why = (
            "it was free a moment ago: try again"
            if credentials is None
            else "the files of --tls-cert, --tls-key and --tls-ca do not make a certificate, its key and a CA"
        )
        raise FailedPrecondition(f"cannot listen on {address}: {why}", reason="CANNOT_BIND") from error
