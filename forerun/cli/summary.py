"""An answer summed up."""

from __future__ import annotations

from typing import Any

from forerun.cli.client import Answer


def summary(answer: Answer) -> dict[str, Any]:
    """Return the object that --json prints."""
    opened, finished = answer.complete()
    speculation, timings = finished.speculation, finished.timings
    settled = finished.usage.completion_tokens
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": finished.finish_reason.name.lower(),
        "session_id": opened.session_id,
        "mode": opened.mode.name.lower(),
        "seed": opened.seed,
        "exact": finished.exact.value,
        "speculation": {
            "passes": speculation.passes,
            "tokens_per_pass": ratio(settled, speculation.passes),
            "acceptance_rate": ratio(speculation.num_accepted, speculation.num_tested),
            "draft_efficiency": ratio(speculation.num_accepted, speculation.num_drafted),
            "num_drafted": speculation.num_drafted,
            "num_accepted": speculation.num_accepted,
        },
        "timings_ms": {
            "first_token": timings.first_token_ms,
            "total": timings.total_ms,
            "pass": timings.pass_ms,
            "wait": timings.wait_ms,
            "queue": timings.queue_ms,
            "commit": timings.commit_ms,
        },
    }


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole; None where there is no whole."""
    return part / whole if whole else None
