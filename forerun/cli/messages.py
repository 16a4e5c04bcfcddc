"""Requests and events as they travel between a client and a gateway."""

from __future__ import annotations

from forerun.core.types import Origin
from forerun.errors import ForerunError
from forerun.v1 import gateway_pb2
from forerun.wire import convert
from gateway.events import Delta, Event, Finished, Opened, Speculation, Timings, Usage
from gateway.request import GenerationRequest


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
