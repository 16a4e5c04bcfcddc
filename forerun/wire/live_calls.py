"""The calls in progress on one server, so that a drain can wait for them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from forerun.errors import Unavailable
from forerun.wire.status import Handler, rewrap


class LiveCalls(grpc.aio.ServerInterceptor):
    """Counts calls of our own services from their start until gRPC has sent their status.

    Health watches and reflection never end by themselves and are not counted. While draining, new calls
    are refused with Unavailable: the caller has another replica, or comes back.
    """

    def __init__(self) -> None:
        self.draining = False
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        return self._count

    async def wait_idle(self) -> None:
        """Return once no call is live."""
        await self._idle.wait()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/forerun."):
            return handler
        return rewrap(handler, self._counted)

    def _counted(self, behaviour: Handler) -> Handler:
        if inspect.isasyncgenfunction(behaviour):

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                self._enter(context)
                async for reply in behaviour(request, context):
                    yield reply

            return stream

        async def single(request: Any, context: Any) -> Any:
            self._enter(context)
            return await behaviour(request, context)

        return single

    def _enter(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self.draining:
            raise Unavailable("this server is shutting down", reason="DRAINING", retry_after_s=1.0)
        self._count += 1
        self._idle.clear()
        # The end of the call, not of the handler: the last messages and the status are out by then.
        context.add_done_callback(self._leave)  # type: ignore[arg-type]  # the stub's type is no Protocol

    def _leave(self, _context: object) -> None:
        self._count -= 1
        if self._count == 0:
            self._idle.set()
