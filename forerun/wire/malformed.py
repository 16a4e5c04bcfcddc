"""Bytes that are no message: the caller's fault, said before a handler sees them.

gRPC parses a request before any interceptor may look at it, and answers UNKNOWN with a traceback in the log when
that fails. So parsing never fails here; what came of it is refused where requests are handed on.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from forerun.errors import InvalidRequest

Parser = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands where a request should be; `why` is the parser's word."""

    why: str


def lenient(parse: Parser | None) -> Parser | None:
    """The parser, which gives Malformed instead of raising DecodeError."""
    if parse is None:
        return None

    def parse_or_mark(raw: bytes) -> Any:
        try:
            return parse(raw)
        except DecodeError as error:
            return Malformed(str(error))

    return parse_or_mark


def well_formed(request: Any) -> Any:
    """The request, or the stream of requests, as the handler may have it.

    Raises InvalidRequest (MALFORMED_MESSAGE) for a malformed one; a stream raises it at that message.
    """
    if isinstance(request, AsyncIterable):
        return _WellFormed(request)
    if isinstance(request, Malformed):
        raise InvalidRequest(f"the request is malformed: {request.why}", reason="MALFORMED_MESSAGE")
    return request


class _WellFormed:
    """Requests of a stream, up to the first malformed one."""

    def __init__(self, requests: AsyncIterable[Any]) -> None:
        self._requests = aiter(requests)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return well_formed(await anext(self._requests))
