"""The gateway's gRPC door, as a client sees it; speaks core types and `gateway.events`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self
from uuid import uuid4

import grpc

from forerun.cli.messages import event_from_proto, request_to_proto
from forerun.core.types import FinishReason, Mode, Origin, Settled
from forerun.errors import ForerunError, InternalFault, InvalidRequest, Unavailable
from forerun.v1 import gateway_pb2, gateway_pb2_grpc
from forerun.wire import convert
from forerun.wire.address import Address
from forerun.wire.channel import open_channel
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls
from gateway.events import Delta, Event, Finished, Opened
from gateway.request import GenerationRequest

DEFAULT_ADDRESS = "127.0.0.1:8081"
ANSWER_DEADLINE_S = 3600.0  # an answer; anything shorter is the caller's to cancel
LOOKUP_DEADLINE_S = 30.0
RESUME_WITHIN_S = 30.0  # a gateway that is started anew is there again by then
RESUME_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as Redis holds it; the passes and the texts of their tokens only when asked for."""

    session_id: str
    token_ids: tuple[int, ...]
    prompt_length: int
    text: str
    mode: Mode
    seed: int | None
    finish_reason: FinishReason
    passes: tuple[Settled, ...] = ()
    token_texts: tuple[str, ...] = ()
    plan_texts: tuple[str, ...] = ()


@dataclass(slots=True)
class Answer:
    """An answer as it grows; complete once `finished` is set."""

    opened: Opened | None = None
    finished: Finished | None = None
    token_ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    text: str = ""

    def take(self, event: Event) -> None:
        """The event is part of the answer. Raises InternalFault for a gap or a repetition."""
        if isinstance(event, Opened):
            self.opened = event
            return
        if isinstance(event, Delta):
            if event.offset != len(self.token_ids):
                raise InternalFault(f"the gateway sent offset {event.offset}, not {len(self.token_ids)}")
            self.token_ids.extend(event.token_ids)
            self.origins.extend(event.origins)
        else:
            self.finished = event
        self.text += event.text

    def complete(self) -> tuple[Opened, Finished]:
        """Return both ends of a complete answer. Raises InternalFault while one is missing."""
        if self.opened is None or self.finished is None:
            raise InternalFault("the gateway ended the stream before the answer was complete")
        return self.opened, self.finished


class Client:
    """Channels to the gateways of one store; leaving the `async with` closes them. Methods raise the server's errors.

    Raises InvalidRequest for what is no address.

    `addresses`: host:port, or several with commas between them. The first is asked; the next one, in turn, where
    `follow` or `session` finds that one lost.
    """

    def __init__(self, addresses: str, *, tls: Tls | None = None, api_key: str = "") -> None:
        self.addresses = tuple(one.strip() for one in addresses.split(",") if one.strip())
        if not self.addresses:
            raise InvalidRequest(f"{addresses!r} names no gateway", field="gateway")
        for address in self.addresses:
            Address.parse(address, "gateway")  # gRPC would dial port 83719 as 18183
        self._turn = 0
        self._tls = tls or Tls()
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()

    async def __aenter__(self) -> Self:
        # Channels belong to the loop they are opened in; one connects when it is first used.
        self._channels = [open_channel(address, self._tls) for address in self.addresses]
        self._stubs = [gateway_pb2_grpc.GatewayServiceStub(channel) for channel in self._channels]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels:
            await channel.close()

    @property
    def address(self) -> str:
        """The gateway that is asked now."""
        return self.addresses[self._turn % len(self.addresses)]

    @property
    def _stub(self) -> gateway_pb2_grpc.GatewayServiceAsyncStub:
        return self._stubs[self._turn % len(self._stubs)]

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        """Yield the answer's events: Opened, Deltas, Finished."""
        call = self._stub.Generate(
            request_to_proto(request), timeout=ANSWER_DEADLINE_S, metadata=self._metadata
        )
        async for event in _events(call):
            yield event

    async def resume(self, session_id: str, offset: int) -> AsyncIterator[Event]:
        """Yield the events from the answer's token number `offset` on."""
        request = gateway_pb2.ResumeRequest(session_id=session_id, offset=offset)
        async for event in _events(
            self._stub.Resume(request, timeout=ANSWER_DEADLINE_S, metadata=self._metadata)
        ):
            yield event

    async def follow(self, asked: GenerationRequest | str, answer: Answer) -> AsyncIterator[Event]:
        """Yield the answer's events, `answer` growing with them, over the loss of gateways.

        `asked`: a request, or the id of a session whose answer is read from its beginning. A gateway that cannot be
        reached to begin with is passed over, once each. Where the stream breaks after it has begun, it is resumed
        where it stands, at the next address. Raises the error that broke it where `RESUME_WITHIN_S` brought nothing
        further.
        """
        if isinstance(asked, GenerationRequest) and len(self.addresses) > 1 and not asked.request_id:
            asked = replace(asked, request_id=uuid4().hex)  # so that nothing is begun twice
        others = len(self.addresses) - 1
        events, heard_s = self._begun(asked), time.monotonic()
        while True:
            try:
                async for event in events:
                    answer.take(event)
                    heard_s = time.monotonic()
                    yield event
            except ForerunError as fault:
                lost = isinstance(fault, Unavailable)
                if answer.opened is None:
                    if not lost or not others:
                        raise
                    self._turn, others = self._turn + 1, others - 1
                    events = self._begun(asked)
                    continue
                passing = lost or fault.retry_after_s is not None
                if not passing or time.monotonic() - heard_s > RESUME_WITHIN_S:
                    raise
                self._turn += lost
            else:
                answer.complete()  # a stream that ends too soon is a fault of the gateway's
                return
            await asyncio.sleep(RESUME_EVERY_S)
            events = self.resume(answer.opened.session_id, len(answer.token_ids))

    def _begun(self, asked: GenerationRequest | str) -> AsyncIterator[Event]:
        return self.resume(asked, 0) if isinstance(asked, str) else self.generate(asked)

    async def answer(self, request: GenerationRequest) -> Answer:
        """Return the complete answer."""
        answer = Answer()
        async for event in self.generate(request):
            answer.take(event)
        answer.complete()
        return answer

    async def session(self, session_id: str, *, passes: bool = False) -> StoredSession:
        """Return a session as stored; with what each pass settled if asked."""
        request = gateway_pb2.GetSessionRequest(session_id=session_id, include_passes=passes)
        for left in reversed(range(len(self.addresses))):
            try:
                reply = await self._stub.GetSession(
                    request, timeout=LOOKUP_DEADLINE_S, metadata=self._metadata
                )
                break
            except grpc.RpcError as fault:
                error = from_rpc_error(fault)
                if not left or not isinstance(error, Unavailable):
                    raise error from fault
                self._turn += 1
        return StoredSession(
            session_id=reply.session_id,
            token_ids=tuple(reply.token_ids),
            prompt_length=reply.prompt_length,
            text=reply.text,
            mode=convert.mode_from_proto(reply.mode),
            seed=reply.seed if reply.HasField("seed") else None,
            finish_reason=convert.finish_reason_from_proto(reply.finish_reason),
            passes=tuple(convert.settled_from_proto(one) for one in reply.passes),
            token_texts=tuple(reply.token_texts),
            plan_texts=tuple(reply.plan_texts),
        )


async def _events(call: object) -> AsyncIterator[Event]:
    try:
        async for message in call:  # type: ignore[attr-defined]
            yield event_from_proto(message)
    except grpc.RpcError as fault:
        raise from_rpc_error(fault) from fault
    finally:
        call.cancel()  # type: ignore[attr-defined]
