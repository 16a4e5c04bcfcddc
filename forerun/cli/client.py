"""The gateway's gRPC door, as a client sees it; speaks core types and `gateway.events`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import grpc

from forerun.core.types import FinishReason, Mode, Origin, Settled
from forerun.errors import ForerunError, InternalFault, Unavailable
from forerun.v1 import gateway_pb2, gateway_pb2_grpc
from forerun.wire import convert
from forerun.wire.channel import open_channel
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls
from gateway.events import Delta, Event, Finished, Opened, Speculation, Timings, Usage
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
    """One channel to a gateway; leaving the `async with` closes it. Methods raise the server's errors."""

    def __init__(self, address: str, *, tls: Tls | None = None, api_key: str = "") -> None:
        self.address = address
        self._tls = tls or Tls()
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self.address, self._tls)  # belongs to the loop it is opened in
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

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

    async def follow(self, request: GenerationRequest, answer: Answer) -> AsyncIterator[Event]:
        """Yield the answer's events, `answer` growing with them, over the loss of the gateway.

        Where the stream breaks after it has begun, it is resumed where it stands. Raises the error that broke it
        where `RESUME_WITHIN_S` brought nothing further.
        """
        events, heard_s = self.generate(request), time.monotonic()
        while True:
            try:
                async for event in events:
                    answer.take(event)
                    heard_s = time.monotonic()
                    yield event
            except ForerunError as fault:
                passing = isinstance(fault, Unavailable) or fault.retry_after_s is not None
                if not passing or answer.opened is None or time.monotonic() - heard_s > RESUME_WITHIN_S:
                    raise
            else:
                answer.complete()  # a stream that ends too soon is a fault of the gateway's
                return
            await asyncio.sleep(RESUME_EVERY_S)
            events = self.resume(answer.opened.session_id, len(answer.token_ids))

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
        try:
            reply = await self._stub.GetSession(request, timeout=LOOKUP_DEADLINE_S, metadata=self._metadata)
        except grpc.RpcError as fault:
            raise from_rpc_error(fault) from fault
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


def request_to_proto(request: GenerationRequest) -> gateway_pb2.GenerateRequest:
    """Return the request as it travels."""
    message = gateway_pb2.GenerateRequest(
        request_id=request.request_id,
        session_id=request.session_id,
        model=request.model,
        sampling=convert.sampling_to_proto(request.sampling),
        seed=request.seed,
        acceptance=int(request.acceptance),  # type: ignore[arg-type]
        max_tokens=request.max_tokens,
        stop=request.stop,
        no_draft=request.no_draft,
        ignore_end_tokens=request.ignore_end_tokens,
    )
    if request.prompt is not None:
        message.prompt = request.prompt
    elif request.messages is not None:
        messages = [gateway_pb2.ChatMessage(role=role, content=content) for role, content in request.messages]
        message.chat.CopyFrom(gateway_pb2.Chat(messages=messages))
    elif request.token_ids is not None:
        message.token_ids.CopyFrom(gateway_pb2.TokenIds(ids=request.token_ids))
    return message


def event_from_proto(message: gateway_pb2.GenerateResponse | gateway_pb2.ResumeResponse) -> Event:
    """Return the one event that the message carries. Raises ForerunError for a message without one."""
    kind = message.WhichOneof("event")
    if kind == "opened":
        opened = message.opened
        return Opened(
            session_id=opened.session_id,
            mode=convert.mode_from_proto(opened.mode),
            seed=opened.seed if opened.HasField("seed") else None,
            prompt_length=opened.prompt_length,
            model=convert.model_from_proto(opened.model),
        )
    if kind == "delta":
        delta = message.delta
        origins = tuple(Origin(one) for one in delta.origins)
        return Delta(delta.offset, tuple(delta.token_ids), origins, delta.text)
    if kind == "finished":
        return _finished_from_proto(message.finished)
    raise ForerunError("the gateway sent an event of an unknown kind")


def _finished_from_proto(message: gateway_pb2.Finished) -> Finished:
    speculation, timings = message.speculation, message.timings
    return Finished(
        finish_reason=convert.finish_reason_from_proto(message.finish_reason),
        usage=Usage(message.usage.prompt_tokens, message.usage.completion_tokens),
        speculation=Speculation(
            passes=speculation.passes,
            num_drafted=speculation.num_drafted,
            num_tested=speculation.num_tested,
            num_accepted=speculation.num_accepted,
            num_salvaged=speculation.num_salvaged,
            num_corrections=speculation.num_corrections,
            num_bonus=speculation.num_bonus,
            acceptance_histogram=tuple(speculation.acceptance_histogram),
        ),
        timings=Timings(
            first_token_ms=timings.first_token_ms,
            total_ms=timings.total_ms,
            pass_ms=timings.pass_ms,
            wait_ms=timings.wait_ms,
            queue_ms=timings.queue_ms,
            commit_ms=timings.commit_ms,
        ),
        exact=convert.exactness_from_proto(message.exact),
        text=message.text,
    )
