"""Settings of the verifier service, read once."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Flags of `forerun verifier`; each is also the variable FORERUN_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="FORERUN_", frozen=True, extra="ignore")

    model: str = "smollm2"
    name: str = ""
    listen: str = "127.0.0.1:7001"
    advertise: str = ""
    dtype: str = "bfloat16"
    threads: int = Field(default=0, ge=0)
    kv_pool_mib: int = Field(default=0, ge=0)
    max_sessions: int = Field(default=64, ge=1)
    max_queue: int = Field(default=256, ge=0)
    window: int = Field(default=32, ge=0, le=1024)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    insecure: bool = False
    trusted_drafters: str = ""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    health_port: int = Field(default=0, ge=0, le=65535)
    otlp_endpoint: str = ""
    grace_s: float = Field(default=30.0, ge=0)
