"""Prometheus metrics of the drafter."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

DRAFTED_TOKENS = Counter("forerun_drafter_drafted_tokens", "Tokens drafted and sent")
TESTED_TOKENS = Counter("forerun_drafter_tested_tokens", "Tokens of this drafter that verifiers tested")
ACCEPTED_TOKENS = Counter("forerun_drafter_accepted_tokens", "Tokens of this drafter that were accepted")
MESSAGES = Counter("forerun_drafter_messages", "Draft messages sent")
RESTARTS = Counter("forerun_drafter_restarts", "Branches begun anew because a verdict disagreed")
REATTACHES = Counter("forerun_drafter_reattaches", "Verify streams opened again after one broke")
SESSIONS = Gauge("forerun_drafter_sessions", "Sessions drafted for now")
FORWARD_SECONDS = Histogram(
    "forerun_drafter_forward_seconds",
    "Time of a forward pass of the drafting model",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2),
)
