"""A session's events as JSON objects of our own, for clients that resume by offset."""

from __future__ import annotations

from typing import Any

from gateway.events import Delta, Finished, Opened
from gateway.http.answers import metrics_object, usage_object


def opened_object(opened: Opened) -> dict[str, Any]:
    """The session as it was found; offsets count answer tokens."""
    return {
        "type": "opened",
        "session_id": opened.session_id,
        "model": opened.model.name,
        "mode": opened.mode.name.lower(),
        "seed": opened.seed,
        "prompt_length": opened.prompt_length,
    }


def delta_object(delta: Delta) -> dict[str, Any]:
    """Committed tokens, where each came from, and the text that became visible with them."""
    return {
        "type": "delta",
        "offset": delta.offset,
        "token_ids": list(delta.token_ids),
        "origins": [origin.name.lower() for origin in delta.origins],
        "text": delta.text,
    }


def finished_object(opened: Opened, finished: Finished) -> dict[str, Any]:
    """The end, however it came."""
    return {
        "type": "finished",
        "finish_reason": finished.finish_reason.name.lower(),
        "text": finished.text,
        "usage": usage_object(finished.usage),
        "metrics": metrics_object(opened, finished),
    }
