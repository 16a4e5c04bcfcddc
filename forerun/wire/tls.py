"""Mutual TLS: one certificate, key and CA for all of a process's servers and channels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from forerun.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files; all three or none. The CA signs the peers this process calls and those that may call it."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    @property
    def enabled(self) -> bool:
        return any(path is not None for path in (self.cert, self.key, self.ca))

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials that demand a client certificate signed by the CA; InvalidRequest without a file."""
        cert, key, ca = self._read()
        return grpc.ssl_server_credentials([(key, cert)], root_certificates=ca, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials that show our certificate and trust only the CA; InvalidRequest without a file."""
        cert, key, ca = self._read()
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        return (
            _content(self.cert, "tls-cert"),
            _content(self.key, "tls-key"),
            _content(self.ca, "tls-ca"),
        )


def _content(path: Path | None, field: str) -> bytes:
    if path is None:
        raise InvalidRequest(
            "mutual TLS needs --tls-cert, --tls-key and --tls-ca", reason="TLS_INCOMPLETE", field=field
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {path}: {error.strerror}", reason="TLS_UNREADABLE", field=field
        ) from error
    if b"-----BEGIN" not in content:
        raise InvalidRequest(f"{path} is not a PEM file", reason="TLS_UNREADABLE", field=field)
    return content
