"""Who is calling."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc

from forerun.wire.address import is_loopback_host

_NAMES = ("x509_subject_alternative_name", "x509_common_name")


def peer_identities(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, ...]:
    """Every name in the caller's verified certificate, alternative names first; () without TLS."""
    auth = context.auth_context()
    if b"ssl" not in auth.get("transport_security_type", ()):
        return ()
    names = [raw.decode() for key in _NAMES for raw in auth.get(key, ())]
    return tuple(dict.fromkeys(names))


def peer_identity(context: grpc.aio.ServicerContext[Any, Any]) -> str | None:
    """The first name of the caller's verified certificate; None without TLS."""
    return next(iter(peer_identities(context)), None)


def is_loopback_peer(context: grpc.aio.ServicerContext[Any, Any]) -> bool:
    """Whether the call comes from this machine (127.0.0.0/8, ::1, a Unix socket)."""
    kind, _, rest = unquote(context.peer()).partition(":")
    if kind == "unix":
        return True
    host = rest.rpartition(":")[0].strip("[]")
    return kind in {"ipv4", "ipv6"} and is_loopback_host(host.removeprefix("::ffff:"))
