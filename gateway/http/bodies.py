"""What clients may send, field by field. Types only: the ranges are for the one validation of both doors."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from forerun.errors import InvalidRequest
from gateway.http.errors import BodyEncoded, NotJson, path_of


class StreamOptions(BaseModel):
    """Options of a streamed answer; obfuscation is accepted and means nothing here."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Body(BaseModel):
    """Fields of both kinds of completion. Unset is null; what is not listed is judged by `unsupported`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False)

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None  # 1 when unset, as OpenAI has it
    top_p: float | None = None
    seed: int | None = None
    stop: JsonValue = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Beyond OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    acceptance: Literal["auto", "rejection", "coupled"] | None = None
    no_draft: bool | None = None
    session_id: str | None = None
    request_id: str | None = None
    ignore_eos: bool | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: JsonValue = None


class Message(BaseModel):
    """One message of a chat; `content` is text or a list of text parts."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    role: str
    content: JsonValue = None


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None


_B = TypeVar("_B", bound=Body)


async def read_body(request: Request, kind: type[_B]) -> _B:
    """The body as `kind`. Raises InvalidRequest naming the field, NotJson, BodyEncoded."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        # Demanding the header keeps other sites' scripts out: a browser asks before it sends this type
        # across.
        raise NotJson("send the body as Content-Type: application/json", reason="NOT_JSON")
    encodings = {
        one.strip().lower() for one in ",".join(request.headers.getlist("content-encoding")).split(",")
    }
    if encodings - {"", "identity"}:
        raise BodyEncoded("send the body without a Content-Encoding", reason="BODY_ENCODED")
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> InvalidRequest:
    found: dict[str, Any] = dict(error.errors(include_url=False)[0])
    if found["type"] == "json_invalid":
        return InvalidRequest(f"the body is not JSON: {found['msg']}", reason="BAD_JSON")
    field = path_of(found["loc"])
    if not field:
        return InvalidRequest("the body must be a JSON object", reason="MALFORMED")
    return InvalidRequest(f"{field}: {found['msg']}", reason="MALFORMED", field=field)
