"""What Prometheus can ask of a gateway; on the default registry of the process."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("forerun_gateway_requests", "Answers asked for, by what became of the call.", ["outcome"])
RUNNING = Gauge("forerun_gateway_running_sessions", "Sessions this gateway is decoding.")
TOKENS = Counter("forerun_gateway_tokens_committed", "Answer tokens that Redis holds.")
COMMIT_SECONDS = Histogram(
    "forerun_gateway_commit_seconds",
    "One commit, outages waited out included.",
    buckets=(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0),
)
FAILOVERS = Counter("forerun_gateway_failovers", "Times a session moved on to another Decode call.")
TAKEOVERS = Counter("forerun_gateway_takeovers", "Sessions taken over from another gateway, or continued.")
ENDED = Counter("forerun_gateway_generations_ended", "Generations by how they ended here.", ["end"])
