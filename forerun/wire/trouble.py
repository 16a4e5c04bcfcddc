"""Why a service cannot be reached, in words that an operator can act on and a client may see."""

from __future__ import annotations

import grpc

from forerun.errors import ForerunError

# How gRPC words it, and what it means; the first that occurs counts.
_MEANINGS = (
    ("Connection refused", "connection refused"),
    ("Hostname Verification Check failed", "TLS handshake failed: its certificate names another host"),
    ("certificate has expired", "TLS handshake failed: its certificate has expired"),
    ("CERTIFICATE_VERIFY_FAILED", "TLS handshake failed: its certificate is not trusted"),
    ("WRONG_VERSION_NUMBER", "TLS handshake failed: it does not speak TLS"),
    ("ls handshake failed", "TLS handshake failed"),
    ("parsing HTTP/2", "does not speak gRPC"),
    ("http2 header with status", "does not speak gRPC"),
    ("errors resolving", "name not resolved"),
    ("DNS resolution failed", "name not resolved"),
    ("No route to host", "no route to host"),
    ("Network is unreachable", "network unreachable"),
    ("timed out", "connection timed out"),
)
_CONNECTING = "failed to connect"


def reason_of(error: grpc.aio.AioRpcError | ForerunError) -> str:
    """A short reason, the same for the same trouble however often it comes; nothing else of the error."""
    if isinstance(error, ForerunError):
        return _spoken(error.reason)
    if meaning := meaning_of(error.details() or "", error.code()):
        return meaning
    return "connection lost" if error.code() is grpc.StatusCode.UNAVAILABLE else _spoken(error.code().name)


def meaning_of(details: str, code: grpc.StatusCode) -> str:
    """What a connection's end means, as gRPC words it in `details`; empty where that is not known."""
    for wording, meaning in _MEANINGS:
        if wording in details:
            return meaning
    if code is grpc.StatusCode.UNAVAILABLE and _CONNECTING in details:
        return "closed the connection in the handshake: TLS on one side only, or our certificate refused"
    return ""


def _spoken(name: str) -> str:
    return name.lower().replace("_", " ")
