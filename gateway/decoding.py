"""One `Decode` call: what a verifier says, message by message, with every way to fail as one exception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import grpc

from forerun.core.types import FinishReason, Settled
from forerun.errors import ForerunError, InternalFault, InvalidRequest, Unavailable
from forerun.v1 import verifier_pb2, verifier_pb2_grpc
from forerun.wire.convert import settled_from_proto
from forerun.wire.status import from_rpc_error
from forerun.wire.telemetry import inject
from gateway.patience import Patience
from gateway.replica import Replica

# Ends that only a session's own events bring; any other ended the call, not the answer.
_ENDS = (FinishReason.NONE, FinishReason.STOP, FinishReason.LENGTH)


class VerifierLost(Exception):  # noqa: N818 - an event that is handled, not an error that is shown
    """A call will say nothing more; `error` is why."""

    def __init__(self, error: ForerunError) -> None:
        super().__init__(error.message)
        self.error = error


class Decoding:
    """An open call: `started` once, then `settled` until one has a finish reason; both raise VerifierLost.

    Messages are read as they come, so that all that came while a commit was under way is the next one's.
    """

    def __init__(self, call: Any, stall_s: float) -> None:
        self._call = call
        self._stall_s = stall_s
        self._messages: list[verifier_pb2.DecodeResponse] = []
        self._lost: Exception | None = None  # after what is in `_messages`
        self._news = asyncio.Event()

    async def started(self) -> verifier_pb2.Started:
        """The first message."""
        (message, *self._messages) = await self._some()
        if not message.HasField("started"):
            raise _broken("its first message is not `started`")
        return message.started

    async def settled(self) -> list[Settled]:
        """What was settled since the last call, oldest first; an end among it is the verifier's last word."""
        messages = await self._some()
        if not all(message.settled for message in messages):
            raise _broken("it says something else than `settled`")
        try:
            settled = [settled_from_proto(one) for message in messages for one in message.settled]
        except InvalidRequest as error:
            raise _broken(error.message) from error
        for one in settled:
            if one.finish_reason not in _ENDS:
                raise _broken(f"it ended the session with {one.finish_reason.name}")
        return settled

    async def _some(self) -> list[verifier_pb2.DecodeResponse]:
        """At least one message; raises what ended the call once there is none."""
        while not self._messages:
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            await self._news.wait()
        messages, self._messages = self._messages, []
        return messages

    async def read_on(self) -> None:
        """Read until the call says nothing more; whatever ended it, `settled` raises."""
        while self._lost is None:
            try:
                message = await self._read()
                self._messages.append(message)
            except Exception as lost:  # noqa: BLE001 - raised where it is waited for
                self._lost = lost
            self._news.set()

    async def _read(self) -> verifier_pb2.DecodeResponse:
        try:
            async with asyncio.timeout(self._stall_s):
                message = await self._call.read()
        except TimeoutError:
            raise VerifierLost(Unavailable("the verifier fell silent", reason="STALLED")) from None
        except grpc.aio.AioRpcError as error:
            raise VerifierLost(from_rpc_error(error)) from error
        except asyncio.CancelledError:
            # The other side's status CANCELLED looks like our own cancellation; only that has a canceller.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise VerifierLost(Unavailable("the verifier cancelled", reason="CANCELLED")) from None
        if not isinstance(message, verifier_pb2.DecodeResponse):
            raise _broken("it ended the stream before the session")
        return message


@asynccontextmanager
async def decode(
    replica: Replica, request: verifier_pb2.DecodeRequest, patience: Patience
) -> AsyncIterator[Decoding]:
    """An open `Decode` on a replica; cancelled when left. Raises VerifierLost when it is not connected."""
    with ExitStack() as stack:
        try:
            channel = stack.enter_context(replica.in_use())
            call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(
                request, timeout=patience.decode_s, metadata=inject()
            )
        except (Unavailable, grpc.aio.UsageError) as error:
            raise VerifierLost(Unavailable("the verifier is not connected", reason="REPLICA_LOST")) from error
        stack.callback(call.cancel)
        decoding = Decoding(call, patience.stall_s)
        reading = asyncio.create_task(decoding.read_on())
        try:
            yield decoding
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def _broken(what: str) -> VerifierLost:
    return VerifierLost(InternalFault(f"the verifier broke the protocol: {what}", reason="PROTOCOL"))
