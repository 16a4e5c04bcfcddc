"""Settings of the verifier service, read once."""

from __future__ import annotations

from pydantic import Field

from forerun.wire.settings import Device, Dtype, KvPoolMib, Listen, ServiceSettings, Threads


class Settings(ServiceSettings):
    """Flags of `forerun verifier`; each is also the variable FORERUN_<NAME>."""

    model: str = Field(default="smollm2", description="smollm2, a folder, a .gguf file or a hub id")
    name: str = Field(default="", description="name clients ask for; default: the model's own")
    listen: Listen = "127.0.0.1:7001"
    advertise: str = Field(default="", description="host:port at which drafters reach this very verifier")
    dtype: Dtype = "bfloat16"
    device: Device = "auto"
    threads: Threads = 0
    kv_pool_mib: KvPoolMib = 0
    max_sessions: int = Field(default=64, ge=1, description="sessions that run at once")
    max_queue: int = Field(default=256, ge=0, description="sessions that may wait; more are refused")
    window: int = Field(
        default=32, ge=0, le=1024, description="undecided tokens a drafter may have in flight"
    )
    lookup: bool = Field(default=True, description="draft from each session's own text, beside any drafters")
    flush_ms: float = Field(
        default=50.0, ge=0, le=1000, description="least time between two messages to a client; 0: one a pass"
    )
    trusted_drafters: str = Field(
        default="", description="TLS names, comma separated, whose laws are believed"
    )
