"""Settings of the gateway, read once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Flags of `forerun gateway`; each is also the variable FORERUN_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="FORERUN_", frozen=True, extra="ignore")

    verifiers: str = "127.0.0.1:7001"
    drafters: str = ""
    redis_url: str = "redis://127.0.0.1:6379/0"
    http: str = "127.0.0.1:8080"
    grpc: str = "127.0.0.1:8081"
    api_keys_file: Path | None = None
    acceptance: Literal["auto", "rejection", "coupled"] = "auto"
    lease_s: float = Field(default=5.0, gt=0)
    detach_grace_s: float = Field(default=10.0, ge=0)
    session_ttl_s: float = Field(default=24 * 3600.0, gt=0)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    insecure: bool = False
    metrics_port: int = Field(default=0, ge=0, le=65535)
    health_port: int = Field(default=0, ge=0, le=65535)
    otlp_endpoint: str = ""
    grace_s: float = Field(default=30.0, ge=0)
