"""One assisted session from `Assist` to its end: attach, draft, attach again when a stream breaks."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from opentelemetry.context import Context

from drafter_service import metrics
from drafter_service.channels import Channels
from drafter_service.loop import Attachment, DraftingLoop
from drafter_service.session import Counts, DraftSession
from drafter_service.sources.source import Source
from forerun.core.types import FinishReason, Snapshot
from forerun.errors import ForerunError, InternalFault, Overloaded, Unavailable
from forerun.v1 import verifier_pb2 as pb
from forerun.v1 import verifier_pb2_grpc as rpc
from forerun.wire import convert
from forerun.wire.status import from_rpc_error
from forerun.wire.telemetry import inject

ATTACH_TIMEOUT_S = 10.0
# Attempts in a row that bring no verdict before the session is given up: about six seconds of backing off.
MAX_ATTEMPTS = 6
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 2.0
# What may be over by the next attempt. Anything else is the verifier's answer: no such session, an old epoch,
# another vocabulary, a wrong key.
_PASSING = (Unavailable, Overloaded, InternalFault)

Replies = AsyncIterator[pb.VerifyResponse]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Order:
    """What an `Assist` call asks for, validated."""

    session_id: str
    epoch: int
    verifier_address: str
    attach_key: bytes
    vocab_fingerprint: str  # the target's, and this drafter's

    @property
    def place(self) -> tuple[str, str]:
        """The session as its verifier knows it; drafted for at most once."""
        return self.verifier_address, self.session_id


class Assistance:
    """Drafts for one session until it ends.

    `changed` is set whenever `counts` have moved. One Verify stream at a time; each has a name of its own
    in the source, so that nothing drawn for an older one can reach a newer one.
    """

    def __init__(
        self,
        order: Order,
        source: Source,
        loop: DraftingLoop,
        channels: Channels,
        *,
        drafter: str,
        trace: Context,
        time_left: Callable[[], float | None],
    ) -> None:
        self.order = order
        self.counts = Counts()
        self.changed = asyncio.Event()
        self._source = source
        self._loop = loop
        self._channels = channels
        self._drafter = drafter
        self._trace = trace
        self._time_left = time_left
        self._failures = 0  # attempts in a row that brought no verdict
        self._num_streams = 0

    async def run(self) -> FinishReason:
        """Draft to the session's end and return its reason.

        Raises the verifier's answer when it will not have this drafter, Unavailable when it cannot be
        reached.
        """
        async with self._channels.use(self.order.verifier_address) as channel:
            stub = rpc.VerifierServiceStub(channel)
            while True:
                try:
                    return await self._stream(stub)
                except grpc.RpcError as broken:
                    error = from_rpc_error(broken)
                except Unavailable as gone:
                    error = gone
                self._failures += 1
                if not isinstance(error, _PASSING):
                    raise error
                if self._failures >= MAX_ATTEMPTS:
                    raise Unavailable(
                        f"verifier {self.order.verifier_address}: {error.message}", reason="STREAM_LOST"
                    ) from error
                log.info(
                    "stream broke", session=self.order.session_id, reason=error.reason, why=error.message
                )
                metrics.REATTACHES.inc()
                await asyncio.sleep(_backoff_s(self._failures))

    async def _stream(self, stub: Any) -> FinishReason:
        """Attach and draft until the verifier says that the session is over, or the stream breaks."""
        self._num_streams += 1
        call = stub.Verify(metadata=inject(context=self._trace), timeout=self._time_left())
        # Iterated, not `read`: a write that meets the end of the stream marks the call as failed, and
        # `read` would then not deliver the last verdict although it has arrived.
        replies = aiter(call)
        attachment: Attachment | None = None
        try:
            snapshot = await self._attach(call, replies)
            attachment = Attachment(self._session(snapshot), self._trace)
            self.changed.set()
            self._loop.join(attachment)
            return await self._draft(call, replies, attachment)
        finally:
            call.cancel()
            if attachment is not None:
                self._loop.leave(attachment)
                await self._source.forget(attachment.session.key)

    async def _attach(self, call: Any, replies: Replies) -> Snapshot:
        order = self.order
        attach = pb.Attach(
            session_id=order.session_id,
            epoch=order.epoch,
            attach_key=order.attach_key,
            drafter=self._drafter,
            source=self._source.name,
            vocab_fingerprint=order.vocab_fingerprint,
            ships_laws=self._source.model is not None,
        )
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT_S):
                await _write(call, pb.VerifyRequest(attach=attach))
                reply = await anext(replies, None)
        except TimeoutError:
            raise Unavailable("the verifier does not answer", reason="ATTACH_TIMEOUT") from None
        if reply is None or reply.WhichOneof("message") != "snapshot":
            raise Unavailable("the verifier sent no snapshot", reason="NO_SNAPSHOT")
        return convert.snapshot_from_proto(reply.snapshot)

    def _session(self, snapshot: Snapshot) -> DraftSession:
        order = self.order
        return DraftSession(
            f"{order.verifier_address}/{order.session_id}#{order.epoch}.{self._num_streams}",
            snapshot,
            max_context=self._source.max_context,
            entropy=secrets.token_bytes(32),
            counts=self.counts,
        )

    async def _draft(self, call: Any, replies: Replies, attachment: Attachment) -> FinishReason:
        sending = asyncio.create_task(_send(call, attachment))
        listening = asyncio.create_task(self._listen(replies, attachment.session))
        try:
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            return await listening
        finally:
            sending.cancel()
            listening.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)

    async def _listen(self, replies: Replies, session: DraftSession) -> FinishReason:
        """Take verdicts in until the last one."""
        async for reply in replies:
            verdict = convert.verdict_from_proto(reply.verdict)
            if not session.apply(verdict):
                metrics.RESTARTS.inc()
            metrics.TESTED_TOKENS.inc(verdict.num_drafted)
            metrics.ACCEPTED_TOKENS.inc(verdict.num_accepted)
            self._failures = 0
            self.changed.set()
            if verdict.finish_reason is not FinishReason.NONE:
                return verdict.finish_reason
            self._loop.stir()
        raise Unavailable("the verifier let this stream go", reason="STREAM_CLOSED")


async def _send(call: Any, attachment: Attachment) -> None:
    """Send what the loop puts out until the stream breaks; raise the fault that ends the session."""
    while True:
        item = await attachment.outbox.get()
        if isinstance(item, ForerunError):
            raise item
        if item.delay_s:
            await asyncio.sleep(item.delay_s)
        try:
            await _write(call, pb.VerifyRequest(draft=convert.draft_to_proto(item.message)))
        except grpc.RpcError:
            return  # the listener hears why


async def _write(call: Any, request: pb.VerifyRequest) -> None:
    """Write without a time limit: giving a write up cancels the call, and credits bound what waits."""
    try:
        await call.write(request)
    except asyncio.InvalidStateError:
        # The call ended before the write; the next read raises its status.
        return


def _backoff_s(failures: int) -> float:
    """Doubling up to MAX_BACKOFF_S, less up to half at random: drafters do not come back at once."""
    full: float = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (failures - 1))
    return random.uniform(full / 2, full)
