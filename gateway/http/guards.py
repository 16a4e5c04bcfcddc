"""What stands before every route: API keys, a limit on bodies, and counting.

Plain ASGI, so that streams stay streams.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

from prometheus_client import Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import Unauthenticated
from gateway.api_keys import ApiKeys
from gateway.http.errors import BodyTooLarge, response_of

# A context of a million tokens as JSON numbers fits; tokenizing more would hold up every other client.
# Nobody hears it: the status that nginx logs for a client that went away.
CLIENT_GONE = 499
MAX_BODY_BYTES = 8 * 1024 * 1024
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
    """Answers 413 to a body larger than `max_bytes`, declared or not."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._refusal = BodyTooLarge(f"the body is larger than {max_bytes} bytes", reason="BODY_TOO_LARGE")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, message = bytearray(), await receive()
        # Routes read whole bodies anyway; read here, one that is too large never reaches them.
        while message["type"] == "http.request":
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                # What is still on its way the server reads and drops.
                await response_of(self._refusal)(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
            message = await receive()
        if message["type"] == "http.disconnect":
            await Response(status_code=CLIENT_GONE)(scope, receive, send)
            return
        await self._app(scope, _replay([{"type": "http.request", "body": bytes(body)}], receive), send)


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
