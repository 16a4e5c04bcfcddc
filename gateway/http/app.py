"""The gateway's HTTP door: OpenAI's completions, chats and models, and resuming by session and offset.

Differences from OpenAI's service that a client can notice: `temperature` is 1 when unset, and sampling
without a seed is not reproducible (the answer's `metrics` say which mode ran); with a seed it is, exactly.
`max_tokens` is 256 when unset, or what the context leaves. Up to 16 stop strings. Fields that would change
the answer and are not served are refused by name. Beyond OpenAI's: `top_k`, `min_p`, `acceptance`,
`no_draft`, `ignore_eos`, `session_id` (adds a turn), `request_id` (makes a retry safe: the
same request joins the first one's answer, a different one is refused with 409).

A streamed answer's events carry ids: the number of answer tokens so far. A client that lost its stream goes
on with `GET /v1/sessions/{session_id}/stream?offset=ID`, here or on another gateway, or sends
`Last-Event-ID`, which wins over the query. That stream's events are `{"type": "opened" | "delta" |
"finished", …}`, then `[DONE]`.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any

import prometheus_client
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from forerun.core.types import ModelInfo
from forerun.errors import ForerunError, InvalidRequest, NotFound
from gateway.api_keys import ApiKeys
from gateway.field_names import renamed
from gateway.http import errors
from gateway.http.answers import Shape
from gateway.http.bodies import Body, ChatBody, CompletionBody, read_body
from gateway.http.door import Door
from gateway.http.event_stream import EventStream
from gateway.http.guards import CLIENT_GONE, BodyLimit, Counted, KeyGuard
from gateway.http.streams import completion_chunks, frames, session_chunks, unless_gone, whole_answer
from gateway.http.translate import chat_request, completion_request
from gateway.request import GenerationRequest

MAX_OFFSET_DIGITS = 9


def create_app(gateway: Door, api_keys: ApiKeys | None = None) -> FastAPI:
    """The ASGI app. `api_keys`: who may use /v1; None: everybody. Health and metrics are always open."""
    # OpenAI's interface is documented by OpenAI, and a page of our own would load its scripts from elsewhere.
    app = FastAPI(title="Forerun", openapi_url=None, redirect_slashes=False)
    errors.install(app)
    # The last added is the first to see a request.
    app.add_middleware(BodyLimit)
    app.add_middleware(KeyGuard, api_keys=api_keys or ApiKeys())
    app.add_middleware(Counted)
    _add_completions(app, gateway)
    _add_sessions(app, gateway)
    _add_models(app, gateway)
    _add_health(app, gateway)
    return app


def _add_completions(app: FastAPI, gateway: Door) -> None:
    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        return await _answer(gateway, request, body, completion_request(body), is_chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        try:
            return await _answer(gateway, request, body, chat_request(body), is_chat=True)
        except ForerunError as error:
            raise renamed(error, _as_asked(body, error.field)) from error


def _as_asked(body: ChatBody, field: str) -> str:
    """The field at fault as a chat's client wrote it."""
    if field == "prompt":
        return "messages"
    if field == "max_tokens" and body.max_tokens is None:
        return "max_completion_tokens"
    return field


async def _answer(
    gateway: Door, request: Request, body: Body, wanted: GenerationRequest, *, is_chat: bool
) -> Response:
    events = await gateway.generate(wanted)
    shape = Shape(is_chat=is_chat, created=int(time.time()))
    if body.stream:
        chunks = completion_chunks(events, shape, includes_usage=body.includes_usage)
        return EventStream(frames(chunks), events)
    async with aclosing(events):
        answer = await unless_gone(request, whole_answer(events, shape))
    return Response(status_code=CLIENT_GONE) if answer is None else JSONResponse(answer)


def _add_sessions(app: FastAPI, gateway: Door) -> None:
    @app.get("/v1/sessions/{session_id}/stream")
    async def session_stream(request: Request, session_id: str) -> Response:
        text = request.headers.get("last-event-id") or request.query_params.get("offset", "0")
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_OFFSET_DIGITS):
            raise InvalidRequest("offset must be a number of tokens", reason="MALFORMED", field="offset")
        offset = int(text)
        events = await gateway.resume(session_id, offset)
        return EventStream(frames(session_chunks(events, offset)), events)


def _add_models(app: FastAPI, gateway: Door) -> None:
    created = int(time.time())

    def described(model: ModelInfo) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "forerun",
            "max_model_len": model.max_context,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described(model) for model in gateway.models()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        for served in gateway.models():
            if served.name == name:
                return described(served)
        raise NotFound(f"no model {name!r} is served", reason="MODEL_NOT_FOUND", field="model")


def _add_health(app: FastAPI, gateway: Door) -> None:
    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/healthz")
    @app.get("/readyz")
    async def healthz() -> JSONResponse:
        if await gateway.healthy():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable"}, 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST)
