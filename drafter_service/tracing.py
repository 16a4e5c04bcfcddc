"""One span a burst, in the trace of the request it belongs to."""

from __future__ import annotations

import time

from opentelemetry.context import Context

from forerun.core.types import DraftMessage
from forerun.wire.telemetry import tracer


def trace_burst(context: Context, message: DraftMessage, started_ns: int) -> None:
    """Record that this message was drawn from `started_ns` (Unix time) until now."""
    span = tracer().start_span("drafter.burst", context, start_time=started_ns)
    if span.is_recording():
        span.set_attributes(
            {
                "forerun.base": message.base,
                "forerun.parent": message.parent,
                "forerun.first_id": message.first_id,
                "forerun.num_drafted": len(message.token_ids),
            }
        )
    span.end(time.time_ns())
