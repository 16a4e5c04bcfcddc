"""OpenAI's requests as ours.

What a field may hold beyond its type is checked by `gateway.request`, for both doors.
"""

from __future__ import annotations

from typing import Any

from forerun.core.limits import MAX_TOP_K
from forerun.core.types import Acceptance, Sampling
from forerun.errors import InvalidRequest
from gateway.http.bodies import Body, ChatBody, CompletionBody, Message
from gateway.http.unsupported import refuse_unsupported
from gateway.request import GenerationRequest

_ACCEPTANCE = {
    None: Acceptance.AUTO,
    "auto": Acceptance.AUTO,
    "rejection": Acceptance.REJECTION,
    "coupled": Acceptance.COUPLED,
}
# They come back with every message a client keeps; no template reads them.
_MESSAGE_EXTRAS = frozenset({"name", "refusal", "annotations"})
# vLLM's way to say "all", beside 0.
_ALL_TOKENS = -1


def completion_request(body: CompletionBody) -> GenerationRequest:
    """A raw prompt as a request: text, a list of token ids, or a list of one of either."""
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _request(body, body.max_tokens, prompt=prompt)
    if isinstance(prompt, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
        return _request(body, body.max_tokens, token_ids=tuple(prompt))
    if isinstance(prompt, list) and all(isinstance(item, str | list) for item in prompt):
        raise InvalidRequest("one prompt a request", reason="BATCH_NOT_SUPPORTED", field="prompt")
    raise InvalidRequest(
        "prompt must be text, a list of token ids, or a list of one of either",
        reason="MALFORMED",
        field="prompt",
    )


def chat_request(body: ChatBody) -> GenerationRequest:
    """A conversation as a request."""
    messages = tuple(_message(message, f"messages[{i}]") for i, message in enumerate(body.messages))
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens differ",
            reason="CONFLICT",
            field="max_completion_tokens",
        )
    return _request(body, next(iter(limits), None), messages=messages)


def _request(body: Body, max_tokens: int | None, **prompt: Any) -> GenerationRequest:
    refuse_unsupported(body.model_extra or {})
    if body.stream_options is not None:
        refuse_unsupported(body.stream_options.model_extra or {}, inside="stream_options")
        if not body.stream:
            raise InvalidRequest("stream_options needs stream", reason="CONFLICT", field="stream_options")
    return GenerationRequest(
        **prompt,
        request_id=body.request_id or "",
        session_id=body.session_id or "",
        model=body.model or "",
        sampling=Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=_top_k(body.top_k),
            top_p=1.0 if body.top_p is None else body.top_p,
            min_p=body.min_p or 0.0,
        ),
        seed=body.seed,
        acceptance=_ACCEPTANCE[body.acceptance],
        max_tokens=max_tokens,
        stop=_stop(body.stop),
        no_draft=bool(body.no_draft),
        ignore_end_tokens=bool(body.ignore_eos),
    )


def _top_k(top_k: int | None) -> int:
    if top_k is None or top_k == _ALL_TOKENS:
        return 0
    if not 0 <= top_k <= MAX_TOP_K:
        raise InvalidRequest(
            f"top_k must be between 1 and {MAX_TOP_K}, or 0 or {_ALL_TOKENS} for all",
            reason="OUT_OF_RANGE",
            field="top_k",
        )
    return top_k


def _stop(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, list) and all(isinstance(item, str) for item in stop):
        return tuple(stop)
    raise InvalidRequest("stop must be text or a list of texts", reason="MALFORMED", field="stop")


def _message(message: Message, where: str) -> tuple[str, str]:
    extra = {k: v for k, v in (message.model_extra or {}).items() if k not in _MESSAGE_EXTRAS}
    refuse_unsupported(extra, inside=where)
    content = message.content
    if isinstance(content, list):
        content = "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if not isinstance(content, str):
        field = f"{where}.content"
        raise InvalidRequest(f"{field} must be text or a list of text parts", reason="MALFORMED", field=field)
    return message.role, content


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise InvalidRequest(
            f"{where}: parts of type {kind!r} are not supported, only text",
            reason="UNSUPPORTED_CONTENT",
            field=where,
        )
    raise InvalidRequest(f"{where} is not a text part", reason="MALFORMED", field=where)
