"""The gRPC door: messages of `forerun.v1.GatewayService` to and from what `gateway.service` understands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
from opentelemetry import context as telemetry_context

from forerun.core.types import Acceptance, Sampling
from forerun.errors import ForerunError, InvalidRequest
from forerun.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2
from forerun.wire.convert import exactness_to_proto, model_to_proto, sampling_from_proto, settled_to_proto
from forerun.wire.telemetry import extract
from gateway.api_keys import ApiKeys
from gateway.events import Delta, Event, Finished, Opened
from gateway.field_names import renamed
from gateway.request import GenerationRequest
from gateway.service import Gateway
from gateway.store.session import SessionStatus, StoredSession
from gateway.summary import passes

GATEWAY_SERVICE = "forerun.v1.GatewayService"

# Of our own fields this one, and what is in it, lies in a message of the proto's.
_MESSAGES = "messages"

_STATUS = {
    SessionStatus.RUNNING: gateway_pb2.SESSION_STATUS_RUNNING,
    SessionStatus.DETACHED: gateway_pb2.SESSION_STATUS_DETACHED,
    SessionStatus.FINISHED: gateway_pb2.SESSION_STATUS_FINISHED,
}

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers `GatewayService`; errors become statuses in the server's guard."""

    def __init__(self, gateway: Gateway, api_keys: ApiKeys) -> None:
        self._gateway = gateway
        self._api_keys = api_keys

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        """The answer's events; a client that goes away leaves its generation running for the grace period."""
        self._admit(context)
        with _trace_of(context), _names_of_the_proto():
            stream = await self._gateway.generate(request_from_proto(request))
        async with aclosing(stream):
            async for event in stream:
                yield gateway_pb2.GenerateResponse(**event_to_fields(event))

    async def Resume(
        self, request: gateway_pb2.ResumeRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.ResumeResponse]:
        """The same from an offset on."""
        self._admit(context)
        with _trace_of(context):
            stream = await self._gateway.resume(request.session_id, request.offset)
        async with aclosing(stream):
            async for event in stream:
                yield gateway_pb2.ResumeResponse(**event_to_fields(event))

    async def GetSession(
        self, request: gateway_pb2.GetSessionRequest, context: Context
    ) -> gateway_pb2.GetSessionResponse:
        """The session as stored."""
        self._admit(context)
        session = await self._gateway.get(request.session_id, request.include_passes)
        settled = passes(session.entries)
        token_ids = [token for piece in settled for token in piece.token_ids]
        plan_ids = [token for piece in settled if piece.record for token in piece.record.plan_token_ids]
        return gateway_pb2.GetSessionResponse(
            **_state(session),
            text=await self._gateway.text_of(session),
            passes=[settled_to_proto(piece) for piece in settled],
            token_texts=await self._gateway.token_texts(session, token_ids) if token_ids else (),
            plan_texts=await self._gateway.token_texts(session, plan_ids) if plan_ids else (),
        )

    async def DeleteSession(
        self, request: gateway_pb2.DeleteSessionRequest, context: Context
    ) -> gateway_pb2.DeleteSessionResponse:
        """The session is gone."""
        self._admit(context)
        await self._gateway.delete(request.session_id)
        return gateway_pb2.DeleteSessionResponse()

    def _admit(self, context: Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        authorization = metadata.get("authorization")
        self._api_keys.check(authorization if isinstance(authorization, str) else None)


def request_from_proto(message: gateway_pb2.GenerateRequest) -> GenerationRequest:
    """The request. Raises InvalidRequest without an input and for an unknown enum value.

    The rest is for `gateway.request`.
    """
    given = message.WhichOneof("input")
    if given is None:
        raise InvalidRequest(
            "one of prompt, chat and token_ids must be set", reason="BAD_INPUT", field="prompt"
        )
    try:
        acceptance = Acceptance(message.acceptance)
    except ValueError:
        raise InvalidRequest(
            f"acceptance has no value {message.acceptance}", reason="BAD_ENUM", field="acceptance"
        ) from None
    return GenerationRequest(
        prompt=message.prompt if given == "prompt" else None,
        messages=tuple((m.role, m.content) for m in message.chat.messages) if given == "chat" else None,
        token_ids=tuple(message.token_ids.ids) if given == "token_ids" else None,
        request_id=message.request_id,
        session_id=message.session_id,
        model=message.model,
        sampling=sampling_from_proto(message.sampling) if message.HasField("sampling") else Sampling(),
        seed=message.seed if message.HasField("seed") else None,
        acceptance=acceptance,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        stop=tuple(message.stop),
        no_draft=message.no_draft,
        ignore_end_tokens=message.ignore_end_tokens,
    )


def event_to_fields(event: Event) -> dict[str, Any]:
    """The one field of GenerateResponse or ResumeResponse that carries the event."""
    if isinstance(event, Opened):
        return {
            "opened": gateway_pb2.Opened(
                session_id=event.session_id,
                mode=sampling_pb2.Mode.ValueType(event.mode.value),
                seed=event.seed,
                prompt_length=event.prompt_length,
                model=model_to_proto(event.model),
            )
        }
    if isinstance(event, Delta):
        origins = [sampling_pb2.Origin.ValueType(origin.value) for origin in event.origins]
        return {
            "delta": gateway_pb2.Delta(
                offset=event.offset, token_ids=event.token_ids, origins=origins, text=event.text
            )
        }
    return {"finished": _finished_to_proto(event)}


def _finished_to_proto(event: Finished) -> gateway_pb2.Finished:
    usage, speculation, timings = event.usage, event.speculation, event.timings
    return gateway_pb2.Finished(
        finish_reason=sampling_pb2.FinishReason.ValueType(event.finish_reason.value),
        usage=gateway_pb2.Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens),
        speculation=gateway_pb2.Speculation(
            passes=speculation.passes,
            num_drafted=speculation.num_drafted,
            num_tested=speculation.num_tested,
            num_accepted=speculation.num_accepted,
            num_salvaged=speculation.num_salvaged,
            num_corrections=speculation.num_corrections,
            num_bonus=speculation.num_bonus,
            acceptance_histogram=speculation.acceptance_histogram,
        ),
        timings=gateway_pb2.Timings(
            first_token_ms=timings.first_token_ms,
            total_ms=timings.total_ms,
            pass_ms=timings.pass_ms,
            wait_ms=timings.wait_ms,
            queue_ms=timings.queue_ms,
            commit_ms=timings.commit_ms,
        ),
        exact=exactness_to_proto(event.exact),
        text=event.text,
    )


def _state(session: StoredSession) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "status": _STATUS[session.status],
        "epoch": session.epoch,
        "token_ids": session.token_ids,
        "prompt_length": session.turn.prompt_length,
        "mode": session.turn.mode.value,
        "seed": session.turn.seed,
        "finish_reason": session.finish_reason.value,
    }


@contextmanager
def _trace_of(context: Context) -> Iterator[None]:
    """What is started inside belongs to the caller's trace."""
    token = telemetry_context.attach(extract(context))
    try:
        yield
    finally:
        telemetry_context.detach(token)


@contextmanager
def _names_of_the_proto() -> Iterator[None]:
    """An error raised inside names its field as the proto does."""
    try:
        yield
    except ForerunError as error:
        if not error.field.startswith(_MESSAGES):
            raise
        raise renamed(error, f"chat.{error.field}") from error
