"""Settings of the drafter service, read once."""

from __future__ import annotations

from pydantic import Field

from forerun.wire.settings import Device, Dtype, GraceS, KvPoolMib, Listen, ServiceSettings, Threads


class Settings(ServiceSettings):
    """Flags of `forerun drafter`; each is also the variable FORERUN_<NAME>."""

    source: str = Field(
        default="ngram",
        description="ngram (look-up in the session's own text) or model:SPEC; for tests and benchmarks replay:FILE "
        "(known texts), sync:SOURCE (never ahead), and the faulty slow:MS:SOURCE and stall:SOURCE",
    )
    name: str = Field(default="", description="stable name of this drafter; default: host and port")
    listen: Listen = "127.0.0.1:7101"
    dtype: Dtype = "bfloat16"
    device: Device = "auto"
    threads: Threads = 0
    kv_pool_mib: KvPoolMib = 0
    max_sessions: int = Field(default=64, ge=1, description="sessions drafted for at once")
    allow_verifiers: str = Field(
        default="loopback", description="globs host:port, comma separated, of verifiers it may dial"
    )
    grace_s: GraceS = 5.0
