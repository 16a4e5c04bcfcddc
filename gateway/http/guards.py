"""What stands before every route: API keys, limits on bodies, and counting.

Plain ASGI, so that streams stay streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import perf_counter

from prometheus_client import Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import Unauthenticated
from gateway.api_keys import ApiKeys
from gateway.http.errors import BodyTooLarge, BodyTooSlow, response_of

# Nobody hears it: the status that nginx logs for a client that went away.
CLIENT_GONE = 499
# A context of a million tokens as JSON numbers fits; tokenizing more would hold up every other client.
MAX_BODY_BYTES = 8 * 1024 * 1024
# A body of that size passes at 2 Mbit/s; whoever needs longer holds a connection for nothing.
MAX_BODY_S = 30.0
# The routes that need a key; probes and metrics hold none.
GUARDED = "/v1/"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

REQUESTS = Counter("forerun_http_requests", "HTTP requests answered.", ["method", "route", "status"])
SECONDS = Histogram(
    "forerun_http_request_seconds",
    "From a request's head to the last byte of its answer.",
    ["route"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
IN_PROGRESS = Gauge("forerun_http_requests_in_progress", "HTTP requests being answered.")


class KeyGuard:
    """Lets a request under /v1 pass only with a good API key."""

    def __init__(self, app: ASGIApp, api_keys: ApiKeys) -> None:
        self._app = app
        self._api_keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED):
            try:
                self._api_keys.check(Headers(scope=scope).get("authorization"))
            except Unauthenticated as refusal:
                await response_of(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Answers 413 to a body larger than `max_bytes`, unread if so declared, 408 to one not whole after `max_s`."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES, max_s: float = MAX_BODY_S) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_s = max_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        try:
            if declared.isdecimal() and int(declared) > self._max_bytes:
                raise self._too_large()
            async with asyncio.timeout(self._max_s):
                body = await self._whole(receive)
        except BodyTooLarge as refusal:
            await response_of(refusal)(scope, receive, send)
            return
        except TimeoutError:
            slow = BodyTooSlow(f"the body was not whole after {self._max_s:g} s", reason="BODY_TOO_SLOW")
            await response_of(slow)(scope, receive, send)
            return
        if body is None:
            await Response(status_code=CLIENT_GONE)(scope, receive, send)
            return
        await self._app(scope, _replay([{"type": "http.request", "body": body}], receive), send)

    async def _whole(self, receive: Receive) -> bytes | None:
        """The body, None when the client goes away before it is whole. Raises BodyTooLarge.

        Routes read whole bodies anyway; read here, one that is too large never reaches them.
        """
        body, message = bytearray(), await receive()
        while message["type"] == "http.request":
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)
            message = await receive()
        return None

    def _too_large(self) -> BodyTooLarge:
        # What is still on its way the server reads and drops.
        return BodyTooLarge(f"the body is larger than {self._max_bytes} bytes", reason="BODY_TOO_LARGE")


def _replay(pending: Iterable[Message], receive: Receive) -> Receive:
    left = list(pending)

    async def replayed() -> Message:
        return left.pop(0) if left else await receive()

    return replayed


class Counted:
    """Counts every request with its route and status, and times it to the last byte."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = perf_counter()
        try:
            with IN_PROGRESS.track_inprogress():
                await self._app(scope, receive, noting)
        finally:
            # The template, not the path: an unknown path must not become a time series of its own.
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            REQUESTS.labels(method, route, str(status)).inc()
            SECONDS.labels(route).observe(perf_counter() - began)
