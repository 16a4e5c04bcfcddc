"""The two calls of `DrafterService`. Errors leave through `forerun.wire.status`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from drafter_service import metrics
from drafter_service.allow_list import AllowList
from drafter_service.assist import Assistance, Order
from drafter_service.channels import Channels
from drafter_service.loop import DraftingLoop
from drafter_service.sources.source import Source
from forerun.core.limits import check_session_id
from forerun.core.types import FinishReason
from forerun.errors import FailedPrecondition, InvalidRequest, Overloaded, Superseded
from forerun.v1 import drafter_pb2 as pb
from forerun.v1 import drafter_pb2_grpc as rpc
from forerun.v1 import model_pb2, sampling_pb2
from forerun.wire.convert import model_to_proto
from forerun.wire.telemetry import extract

RETRY_AFTER_S = 1.0
# Counts are sent at most this often: the call is a sign of life, not a meter.
REPORT_INTERVAL_S = 1.0

log = structlog.get_logger()


class Drafter(rpc.DrafterServiceServicer):
    """Admits sessions and reports on them; `Assistance` and the loop do the rest.

    A session is drafted for once a verifier: a later `Assist` of at least the same epoch ends the earlier
    with ABORTED.
    """

    def __init__(
        self,
        source: Source,
        loop: DraftingLoop,
        channels: Channels,
        *,
        name: str,
        allowed: AllowList,
        max_sessions: int,
    ) -> None:
        self.name = name
        self._source = source
        self._loop = loop
        self._channels = channels
        self._allowed = allowed
        self._max_sessions = max_sessions
        self._running: dict[tuple[str, str], tuple[Assistance, asyncio.Task[FinishReason]]] = {}

    async def GetModel(
        self,
        request: pb.DrafterServiceGetModelRequest,  # noqa: ARG002
        context: grpc.aio.ServicerContext[Any, Any],  # noqa: ARG002
    ) -> pb.DrafterServiceGetModelResponse:
        """Describe the source and how busy it is."""
        model = self._source.model
        return pb.DrafterServiceGetModelResponse(
            model=model_pb2.Model(name=self._source.name) if model is None else model_to_proto(model),
            source=self._source.name,
            drafter=self.name,
            num_sessions=len(self._running),
            max_sessions=self._max_sessions,
        )

    async def Assist(
        self, request: pb.AssistRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.AssistResponse]:
        """Draft for one session until it ends; yield counts when attached, now and then, and at the end."""
        assistance = self._assistance(self._order(request), context)
        run = self._start(assistance)
        try:
            while await _attached_or_moved(assistance, run):
                yield _report(assistance)
                await asyncio.wait({run}, timeout=REPORT_INTERVAL_S)
            if run.cancelled():
                raise Superseded("a newer Assist drafts for this session", reason="ASSISTED_AGAIN")
            yield _report(assistance, run.result())
        finally:
            self._stop(assistance, run)
            await asyncio.wait({run})
            if not run.cancelled():
                run.exception()  # heard, also where the caller has gone

    def _order(self, request: pb.AssistRequest) -> Order:
        check_session_id(request.session_id)
        if not request.attach_key:
            raise InvalidRequest("attach_key is missing", reason="EMPTY", field="attach_key")
        address = self._allowed.check(request.verifier_address)
        own = None if self._source.model is None else self._source.model.vocab_fingerprint
        if own is not None and own != request.vocab_fingerprint:
            raise FailedPrecondition(
                f"this drafter has vocabulary {own}, the target {request.vocab_fingerprint or '(none)'}; "
                "a drafter must share the target's vocabulary",
                reason="VOCABULARY_MISMATCH",
                metadata={"target": request.vocab_fingerprint, "drafter": own},
            )
        return Order(
            request.session_id, request.epoch, address, request.attach_key, request.vocab_fingerprint
        )

    def _assistance(self, order: Order, context: grpc.aio.ServicerContext[Any, Any]) -> Assistance:
        """Admit the session, in the place of an earlier call for it. Overloaded when there is no place."""
        earlier = self._running.get(order.place)
        if earlier is not None:
            if order.epoch < earlier[0].order.epoch:
                raise FailedPrecondition(
                    f"session {order.session_id} is drafted for under epoch {earlier[0].order.epoch}",
                    reason="OLD_EPOCH",
                    metadata={"epoch": str(earlier[0].order.epoch)},
                )
        elif len(self._running) >= self._max_sessions:
            raise Overloaded(
                f"this drafter has its {self._max_sessions} sessions",
                reason="DRAFTER_FULL",
                retry_after_s=RETRY_AFTER_S,
            )
        return Assistance(
            order,
            self._source,
            self._loop,
            self._channels,
            drafter=self.name,
            trace=extract(context),
            time_left=context.time_remaining,
        )

    def _start(self, assistance: Assistance) -> asyncio.Task[FinishReason]:
        earlier = self._running.pop(assistance.order.place, None)
        if earlier is not None:
            earlier[1].cancel()
        run = asyncio.create_task(assistance.run())
        self._running[assistance.order.place] = (assistance, run)
        metrics.SESSIONS.set(len(self._running))
        return run

    def _stop(self, assistance: Assistance, run: asyncio.Task[FinishReason]) -> None:
        run.cancel()
        place = assistance.order.place
        if place in self._running and self._running[place][0] is assistance:
            del self._running[place]
        metrics.SESSIONS.set(len(self._running))
        log.info("session left", session=assistance.order.session_id, drafted=assistance.counts.num_drafted)


async def _attached_or_moved(assistance: Assistance, run: asyncio.Task[FinishReason]) -> bool:
    """Wait for new counts; False once the session is over."""
    moved = asyncio.create_task(assistance.changed.wait())
    try:
        await asyncio.wait({run, moved}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        moved.cancel()
    assistance.changed.clear()
    return not run.done()


def _report(assistance: Assistance, reason: FinishReason = FinishReason.NONE) -> pb.AssistResponse:
    counts = assistance.counts
    return pb.AssistResponse(
        num_drafted=counts.num_drafted,
        num_tested=counts.num_tested,
        num_accepted=counts.num_accepted,
        num_messages=counts.num_messages,
        num_restarts=counts.num_restarts,
        finish_reason=sampling_pb2.FinishReason.ValueType(reason),
    )
