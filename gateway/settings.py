"""Settings of the gateway, read once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from forerun.wire.settings import ServiceSettings


class Settings(ServiceSettings):
    """Flags of `forerun gateway`; each is also the variable FORERUN_<NAME>."""

    verifiers: str = Field(default="127.0.0.1:7001", description="host:port,… or dns:///name:port")
    drafters: str = Field(default="", description="the same; empty: none")
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        description="redis://, rediss://, redis+sentinel:// or redis+cluster://",
    )
    http: str = Field(default="127.0.0.1:8080", description="host:port of the HTTP door")
    grpc: str = Field(default="127.0.0.1:8081", description="host:port of the gRPC door")
    api_keys_file: Path | None = Field(default=None, description="one API key a line; none: no key needed")
    acceptance: Literal["auto", "rejection", "coupled"] = Field(
        default="auto", description="auto, rejection or coupled, for requests that leave it open"
    )
    lease_s: float = Field(
        default=5.0, gt=0, description="seconds until a lost gateway's sessions may be taken over"
    )
    detach_grace_s: float = Field(
        default=10.0, ge=0, description="seconds an answer goes on without a client"
    )
    session_ttl_s: float = Field(
        default=24 * 3600.0, gt=0, description="seconds a session is kept after its last use"
    )
