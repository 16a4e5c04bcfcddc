"""One span a pass and session, in the trace of the request it belongs to."""

from __future__ import annotations

import time

from opentelemetry import trace
from opentelemetry.context import Context

from forerun.core.types import Settled

_TRACER = trace.get_tracer("forerun")  # looked up once: a pass is too short for a look-up of its own


def trace_pass(context: Context, settled: Settled) -> None:
    """Record the pass that just settled these tokens; goes nowhere unless an exporter is set up."""
    record = settled.record
    if record is None:
        return
    ended_ns = time.time_ns()
    span = _TRACER.start_span("verifier.pass", context, start_time=ended_ns - 1000 * record.pass_us)
    if span.is_recording():
        span.set_attributes(
            {
                "forerun.base": settled.base,
                "forerun.num_settled": len(settled.token_ids),
                "forerun.num_drafted": len(record.plan_token_ids),
                "forerun.num_tested": record.num_tested,
                "forerun.num_accepted": record.num_accepted,
                "forerun.num_torn": record.num_torn,
                "forerun.source": record.source,
                "forerun.num_rows": record.num_rows,
                "forerun.num_sessions": record.num_sessions,
                "forerun.wait_us": record.wait_us,
                "forerun.queue_us": record.queue_us,
            }
        )
    span.end(ended_ns)
