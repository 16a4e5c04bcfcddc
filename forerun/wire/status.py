"""Errors on the wire: `forerun.errors` to google.rpc.Status and back, and the guard around every handler.

The rich status carries ErrorInfo (domain "forerun", the reason, the metadata), BadRequest when a field is at
fault, and RetryInfo when it is worth trying again.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from forerun import errors
from forerun.errors import ForerunError
from forerun.wire.malformed import Parser, lenient, well_formed
from forerun.wire.trouble import meaning_of

_DETAILS_KEY = "grpc-status-details-bin"
# How gRPC words a message above its limit; RESOURCE_EXHAUSTED there is no matter of load.
_TOO_LARGE = ("Received message larger than max", "Sent message larger than max")

_CODES: dict[type[ForerunError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionRefused: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.OffsetBeyondEnd: grpc.StatusCode.OUT_OF_RANGE,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Superseded: grpc.StatusCode.ABORTED,
    errors.AlreadyRunning: grpc.StatusCode.ALREADY_EXISTS,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.InternalFault: grpc.StatusCode.INTERNAL,
}
_KINDS = {code: kind for kind, code in _CODES.items()}
# Codes that gRPC itself gives and no error of ours does.
_FOREIGN: dict[grpc.StatusCode, tuple[type[ForerunError], str]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: (errors.Unavailable, "DEADLINE_EXCEEDED"),
    grpc.StatusCode.CANCELLED: (errors.Unavailable, "CANCELLED"),
    grpc.StatusCode.UNIMPLEMENTED: (errors.FailedPrecondition, "UNIMPLEMENTED"),
}

Handler = Callable[[Any, Any], Any]


def code_of(error: ForerunError) -> grpc.StatusCode:
    """The gRPC code of an error; subclasses have that of their nearest known ancestor."""
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return grpc.StatusCode.INTERNAL


def status_of(error: ForerunError) -> status_pb2.Status:
    """The rich status of an error."""
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=errors.DOMAIN, metadata=error.metadata)
    ]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromTimedelta(timedelta(seconds=error.retry_after_s))
        details.append(retry)
    status = status_pb2.Status(code=code_of(error).value[0], message=error.message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ForerunError) -> NoReturn:
    """End the call with the error's status and details; never returns."""
    metadata = ((_DETAILS_KEY, status_of(error).SerializeToString()),)
    await context.abort(code_of(error), error.message, metadata)


def from_rpc_error(error: grpc.RpcError) -> ForerunError:
    """The error that the other side raised, class, reason, field, delay and metadata restored.

    A status without our details (a broken connection, a deadline, another implementation) becomes the
    class of its code, what gRPC says of it with its meaning before it where that is known; a message above the
    size limit becomes InvalidRequest (MESSAGE_TOO_LARGE).
    """
    call: Any = error
    code: grpc.StatusCode = call.code()
    text: str = call.details() or code.name
    for key, value in call.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            restored = _restore(code, text, value)
            if restored is not None:
                return restored
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(phrase in text for phrase in _TOO_LARGE):
        return errors.InvalidRequest(text, reason="MESSAGE_TOO_LARGE")
    if code in _FOREIGN:
        kind, reason = _FOREIGN[code]
        return kind(text, reason=reason)
    if meaning := meaning_of(text, code):
        text = f"{meaning} ({text})"
    return _KINDS.get(code, errors.InternalFault)(text)


def _restore(code: grpc.StatusCode, text: str, raw: bytes) -> ForerunError | None:
    status = status_pb2.Status()
    try:
        status.ParseFromString(raw)
    except DecodeError:
        return None
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    found = {type(kind) for kind in (info, bad, retry) for detail in status.details if detail.Unpack(kind)}
    if type(info) not in found or info.domain != errors.DOMAIN:
        return None
    return _KINDS.get(code, errors.InternalFault)(
        status.message or text,
        reason=info.reason,
        field=bad.field_violations[0].field if bad.field_violations else "",
        retry_after_s=retry.retry_delay.ToTimedelta().total_seconds() if type(retry) in found else None,
        metadata=dict(info.metadata),
    )


async def _end_with(context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str) -> NoReturn:
    if isinstance(error, ForerunError):
        await abort(context, error)
    # The caller learns that it was not its fault, and nothing of what is inside.
    await structlog.get_logger("forerun.wire").aexception("handler failed", method=method, exc_info=error)
    await abort(
        context, errors.InternalFault("internal fault; the server's log has it", reason="HANDLER_FAILED")
    )


def guarded(behaviour: Handler, method: str) -> Handler:
    """The handler with every ForerunError turned into its status, and anything unforeseen into INTERNAL.

    It is given well-formed requests only.
    Works on coroutine functions and on async-generator functions; cancellation and gRPC's own abort pass
    through.
    """
    if inspect.isasyncgenfunction(behaviour):

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(behaviour(well_formed(request), context)) as replies:
                    async for reply in replies:
                        yield reply
            except grpc.aio.AbortError:
                raise
            except Exception as error:  # noqa: BLE001 - logged and answered in _end_with
                await _end_with(context, error, method)

        return stream

    async def single(request: Any, context: Any) -> Any:
        try:
            return await behaviour(well_formed(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - logged and answered in _end_with
            await _end_with(context, error, method)

    return single


def rewrap(
    handler: grpc.RpcMethodHandler[Any, Any],
    wrap: Callable[[Handler], Handler],
    parse: Callable[[Parser | None], Parser | None] = lambda parse: parse,
) -> grpc.RpcMethodHandler[Any, Any]:
    """The same method with its behaviour, and its parser if wanted, wrapped; the streaming kind stays."""
    kinds: Sequence[tuple[Any, Any]] = (
        (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
        (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
        (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
    )
    for behaviour, make in kinds:
        if behaviour is not None:
            return make(wrap(behaviour), parse(handler.request_deserializer), handler.response_serializer)  # type: ignore[no-any-return]
    return handler


class ServicerErrors(grpc.aio.ServerInterceptor):
    """Guards every handler of our own services (`guarded`); gRPC's health and reflection are left alone."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith("/forerun."):
            return handler
        return rewrap(handler, lambda behaviour: guarded(behaviour, method), lenient)
