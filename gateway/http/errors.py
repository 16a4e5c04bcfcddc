"""Errors as OpenAI's clients read them: `{"error": {message, type, param, code}}`, and their status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerun import errors
from forerun.errors import ForerunError
from gateway.field_names import renamed

_STATUS: dict[type[ForerunError], int] = {
    errors.InvalidRequest: 400,
    errors.Unauthenticated: 401,
    errors.PermissionRefused: 403,
    errors.NotFound: 404,
    errors.OffsetBeyondEnd: 400,
    errors.FailedPrecondition: 409,
    errors.Superseded: 409,
    errors.AlreadyRunning: 409,
    errors.Overloaded: 429,
    errors.Unavailable: 503,
    errors.InternalFault: 500,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
# Trying again does not change these, whatever the status makes a client believe.
_FINAL = (errors.FailedPrecondition, errors.Superseded)
_FINAL_REASONS = frozenset({"REQUEST_ID_REUSED"})
# Codes that OpenAI's clients look for; elsewhere it is our reason in lower case.
_CODES = {
    "API_KEY_MISSING": "invalid_api_key",
    "API_KEY_WRONG": "invalid_api_key",
    "CONTEXT_EXCEEDED": "context_length_exceeded",
}
# Names of our own fields that clients of this door know by another.
_PARAMS = {"token_ids": "prompt"}


class BodyTooLarge(ForerunError):  # noqa: N818 - named as the tree in forerun.errors
    """The request's body is larger than this server reads (413)."""


class BodyTooSlow(ForerunError):  # noqa: N818
    """The request's body did not arrive in time (408)."""


class NotJson(ForerunError):  # noqa: N818
    """The request's body is not declared as JSON (415)."""


class BodyEncoded(ForerunError):  # noqa: N818
    """The request's body is compressed, or otherwise encoded (415)."""


_STATUS |= {BodyTooLarge: 413, BodyTooSlow: 408, NotJson: 415, BodyEncoded: 415}


def status_of(error: ForerunError) -> int:
    """The HTTP status of an error; subclasses have that of their nearest known ancestor."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def error_object(message: str, status: int, *, param: str = "", code: str = "") -> dict[str, Any]:
    """The body of an error answer; also what a stream carries when it fails."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code or None}}


def body_of(error: ForerunError) -> dict[str, Any]:
    """The error object of one of ours: `code` is its reason, `param` the field as this door names it."""
    name = error.field.removeprefix("sampling.")
    shown = renamed(error, _PARAMS.get(name, name))
    code = _CODES.get(error.reason, error.reason.lower())
    return error_object(shown.message, status_of(error), param=shown.field, code=code)


def headers_of(error: ForerunError) -> dict[str, str]:
    """Retry-After where a delay is known; a word to OpenAI's clients where trying again is pointless."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if isinstance(error, _FINAL) or error.reason in _FINAL_REASONS:
        headers["X-Should-Retry"] = "false"
    if isinstance(error, BodyTooSlow):
        # The rest of the body may never come: there is nothing this connection is good for.
        headers["Connection"] = "close"
    if isinstance(error, BodyEncoded):
        headers["Accept-Encoding"] = "identity"
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def response_of(error: ForerunError) -> JSONResponse:
    """The whole answer to a request that failed before anything was sent."""
    return JSONResponse(body_of(error), status_of(error), headers_of(error))


def path_of(location: tuple[int | str, ...]) -> str:
    """A field as people write it: ("messages", 0, "content") is "messages[0].content"."""
    parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in location]
    return "".join(parts).removeprefix(".")


def install(app: FastAPI) -> None:
    """Every failure of the app answers in this shape: our errors, FastAPI's own, unknown paths, and bugs."""

    async def ours(_request: Request, error: Exception) -> JSONResponse:
        return response_of(error if isinstance(error, ForerunError) else errors.InternalFault(str(error)))

    async def fields(_request: Request, error: Exception) -> JSONResponse:
        found: Mapping[str, Any] = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        param = path_of(tuple(found.get("loc", ()))[1:])
        text = f"{param}: {found.get('msg', 'not valid')}"
        return JSONResponse(error_object(text, 400, param=param, code="malformed"), 400)

    async def plain(_request: Request, error: Exception) -> JSONResponse:
        status = error.status_code if isinstance(error, HTTPException) else 500
        detail = str(error.detail) if isinstance(error, HTTPException) else "internal fault"
        headers = error.headers if isinstance(error, HTTPException) else None
        code = {404: "not_found", 405: "method_not_allowed"}.get(status, "")
        return JSONResponse(error_object(detail, status, code=code), status, headers)

    async def fault(_request: Request, _error: Exception) -> JSONResponse:
        # The server logs the traceback; the client learns only that it was not its fault.
        return JSONResponse(error_object("internal fault", 500, code="internal_fault"), 500)

    app.add_exception_handler(ForerunError, ours)
    app.add_exception_handler(RequestValidationError, fields)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(Exception, fault)
