"""Prometheus metrics of the verifier; the speculative-decoding names follow vLLM's, with our prefix."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from forerun.core.types import PassRecord

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

DRAFTS = Counter("forerun_spec_decode_num_drafts", "Passes that tested drafted tokens of a session")
DRAFT_TOKENS = Counter("forerun_spec_decode_num_draft_tokens", "Drafted tokens that passes tested")
ACCEPTED_TOKENS = Counter("forerun_spec_decode_num_accepted_tokens", "Drafted tokens that were accepted")
ACCEPTED_PER_POSITION = Counter(
    "forerun_spec_decode_num_accepted_tokens_per_pos",
    "Accepted drafted tokens by place in the plan",
    ["position"],
)
SALVAGED_TOKENS = Counter(
    "forerun_spec_decode_num_salvaged_tokens", "Accepted tokens whose message came late"
)
TORN_TOKENS = Counter("forerun_spec_decode_num_torn_tokens", "Draft nodes dropped when trees were re-rooted")
TOKENS = Counter("forerun_verifier_settled_tokens", "Tokens settled")
PASSES = Counter("forerun_verifier_passes", "Forward passes of the target")
PASS_SECONDS = Histogram("forerun_verifier_pass_seconds", "Time of a forward pass", buckets=_SECONDS)
PASS_ROWS = Histogram(
    "forerun_verifier_pass_rows", "Rows of a pass", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
)
PASS_SESSIONS = Histogram(
    "forerun_verifier_pass_sessions", "Sessions of a pass", buckets=(1, 2, 4, 8, 16, 32, 64)
)
WAIT_SECONDS = Histogram(
    "forerun_verifier_wait_seconds", "Time a session waited for drafts before a pass", buckets=_SECONDS
)
QUEUE_SECONDS = Histogram(
    "forerun_verifier_queue_seconds", "Time a session was ready and in no pass", buckets=_SECONDS
)
WIRE_SECONDS = Histogram(
    "forerun_verifier_draft_turnaround_seconds",
    "Time from a verdict to a drafter's first message about it",
    buckets=_SECONDS,
)
SESSIONS_RUNNING = Gauge("forerun_verifier_sessions_running", "Sessions that take part in passes")
SESSIONS_QUEUED = Gauge("forerun_verifier_sessions_queued", "Sessions that wait for a place")
DRAFTERS_ATTACHED = Gauge("forerun_verifier_drafters_attached", "Open Verify streams")
KV_POSITIONS = Gauge("forerun_verifier_kv_positions", "Positions the KV pool holds in all")
KV_POSITIONS_HELD = Gauge(
    "forerun_verifier_kv_positions_held",
    "Positions of the KV pool that sessions hold; the rest is free or serves equal prefixes",
)
SET_BACKS = Counter(
    "forerun_verifier_set_backs", "Sessions whose KV was dropped for want of room and computed again"
)


def watch(
    *, running: Callable[[], int], queued: Callable[[], int], kv_held: Callable[[], int], kv_positions: int
) -> None:
    """Gauges show what these say whenever somebody asks, in whatever thread."""
    SESSIONS_RUNNING.set_function(running)
    SESSIONS_QUEUED.set_function(queued)
    KV_POSITIONS_HELD.set_function(kv_held)
    KV_POSITIONS.set(kv_positions)


def observe_pass(num_rows: int, num_sessions: int, pass_us: int) -> None:
    """Count one forward pass."""
    PASSES.inc()
    PASS_SECONDS.observe(pass_us / 1e6)
    PASS_ROWS.observe(num_rows)
    PASS_SESSIONS.observe(num_sessions)


def observe_outcome(record: PassRecord, num_settled: int) -> None:
    """Count what one pass decided for one session."""
    TOKENS.inc(num_settled)
    WAIT_SECONDS.observe(record.wait_us / 1e6)
    QUEUE_SECONDS.observe(record.queue_us / 1e6)
    TORN_TOKENS.inc(record.num_torn)
    if record.num_tested:
        DRAFTS.inc()
        DRAFT_TOKENS.inc(record.num_tested)
        ACCEPTED_TOKENS.inc(record.num_accepted)
        SALVAGED_TOKENS.inc(record.num_salvaged)
        for position in range(record.num_accepted):
            ACCEPTED_PER_POSITION.labels(str(position)).inc()
