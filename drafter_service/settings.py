"""Settings of the drafter service, read once."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Flags of `forerun drafter`; each is also the variable FORERUN_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="FORERUN_", frozen=True, extra="ignore")

    source: str = "ngram"
    name: str = ""
    listen: str = "127.0.0.1:7101"
    dtype: str = "bfloat16"
    threads: int = Field(default=0, ge=0)
    kv_pool_mib: int = Field(default=0, ge=0)
    max_sessions: int = Field(default=64, ge=1)
    allow_verifiers: str = "loopback"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    insecure: bool = False
    metrics_port: int = Field(default=0, ge=0, le=65535)
    health_port: int = Field(default=0, ge=0, le=65535)
    otlp_endpoint: str = ""
    grace_s: float = Field(default=5.0, ge=0)
