"""The HTTP server as a part of the gateway's process: it starts, tells its port, drains and stops when told."""

from __future__ import annotations

import math
import socket
import ssl

import uvicorn
from fastapi import FastAPI

from forerun.errors import InvalidRequest
from forerun.wire.address import Address
from forerun.wire.binding import cannot_listen
from forerun.wire.tls import Tls

BACKLOG = 2048
FLAG = "http"  # by which its address is given


class HttpServer:
    """Uvicorn without its main loop and signal handlers: the process that embeds it has its own.

    Refuses (InvalidRequest) an address beyond loopback without TLS unless `insecure`. With TLS clients must
    show a certificate of the CA, as everywhere in Forerun.
    """

    def __init__(self, app: FastAPI, address: str, tls: Tls, *, insecure: bool) -> None:
        self._address = Address.parse(address, FLAG)
        if not (self._address.is_loopback or tls.enabled or insecure):
            raise InvalidRequest(
                f"{address} can be reached from other machines: give --tls-cert, --tls-key and --tls-ca, "
                "or --insecure on a network that is trusted",
                reason="INSECURE_BIND",
                field=FLAG,
            )
        if tls.enabled:
            tls.server_credentials()  # names a file that is missing or no PEM
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            date_header=False,  # the main loop would keep its time
            server_header=False,
            ssl_certfile=tls.cert,
            ssl_keyfile=tls.key,
            ssl_ca_certs=str(tls.ca) if tls.ca else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if tls.enabled else ssl.CERT_NONE,
            backlog=BACKLOG,
        )
        self._server = uvicorn.Server(self._config)
        self._listener: socket.socket | None = None

    async def start(self) -> int:
        """Listen; return the bound port. Raises FailedPrecondition (CANNOT_BIND) when it is taken."""
        self._listener = _listen(self._address)
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=[self._listener])
        return int(self._listener.getsockname()[1])

    async def drain_and_stop(self, grace_s: float) -> None:
        """Take no new connections, let answers end for up to `grace_s`, cut the rest: they can be resumed."""
        self._config.timeout_graceful_shutdown = math.ceil(grace_s)
        await self._server.shutdown(sockets=[self._listener] if self._listener else [])


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, _, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # The protocol is named because asyncio sends small writes at once only on sockets that say they are TCP;
        # on others Nagle's algorithm holds each chunk of a stream back until the one before was acknowledged.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError as error:
        raise cannot_listen(address, FLAG, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise cannot_listen(address, FLAG, error) from error
    listener.setblocking(False)
    return listener
