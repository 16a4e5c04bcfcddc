"""Our events as OpenAI's objects: whole answers, and the chunks of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.core.types import FinishReason
from forerun.errors import FailedPrecondition, InternalFault
from gateway.events import Finished, Opened, Speculation, Usage

_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def finish_reason(finished: Finished) -> str:
    """OpenAI's word for it.

    An answer that was cancelled or failed is an error to this door's clients, and raised.
    """
    if finished.finish_reason in _FINISH:
        return _FINISH[finished.finish_reason]
    if finished.finish_reason is FinishReason.CANCELLED:
        raise FailedPrecondition("the session was cancelled", reason="CANCELLED")
    raise InternalFault("the session ended with a fault")


def usage_object(usage: Usage) -> dict[str, int]:
    """Token counts; what the store holds."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def speculation_object(speculation: Speculation, completion_tokens: int) -> dict[str, Any]:
    """`metrics.speculative_decoding`: our names, null where there is nothing to divide by, and then vLLM's.

    vLLM's mean what they mean there, for clients that read them; a step is a pass that tested drafts, and
    what was drafted is what passes were given to check.
    """
    steps = sum(speculation.acceptance_histogram)
    accepted, drafted = speculation.num_accepted, speculation.num_drafted
    tested, passes = speculation.num_tested, speculation.passes
    return {
        "acceptance_rate": accepted / tested if tested else None,
        "draft_efficiency": accepted / drafted if drafted else None,
        "tokens_per_pass": completion_tokens / passes if passes else None,
        "num_tested": tested,
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": list(speculation.acceptance_histogram),
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
    }


def metrics_object(opened: Opened, finished: Finished) -> dict[str, Any]:
    """How this answer was made: with the mode and seed it can be made again."""
    timings = finished.timings
    return {
        "speculative_decoding": speculation_object(finished.speculation, finished.usage.completion_tokens),
        "mode": opened.mode.name.lower(),
        "seed": opened.seed,
        "exact": finished.exact.value,
        "session_id": opened.session_id,
        "passes": finished.speculation.passes,
        "timings_ms": {
            "first_token": timings.first_token_ms,
            "total": timings.total_ms,
            "pass": timings.pass_ms,
            "wait": timings.wait_ms,
            "queue": timings.queue_ms,
            "commit": timings.commit_ms,
        },
    }


@dataclass(frozen=True, slots=True)
class Shape:
    """One of the two kinds of completion. `created`: Unix seconds."""

    is_chat: bool
    created: int

    def whole(self, opened: Opened, text: str, finished: Finished) -> dict[str, Any]:
        """The answer that is not streamed."""
        part = (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self.is_chat
            else {"text": text}
        )
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish_reason(finished)}
        return self._envelope(opened, choice, is_chunk=False) | {
            "usage": usage_object(finished.usage),
            "metrics": metrics_object(opened, finished),
        }

    def first(self, opened: Opened) -> dict[str, Any]:
        """The chunk that names the session, before there is any text."""
        part = {"delta": {"role": "assistant", "content": ""}} if self.is_chat else {"text": ""}
        return self._chunk(opened, part)

    def piece(self, opened: Opened, text: str) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk(opened, {"delta": {"content": text}} if self.is_chat else {"text": text})

    def last(self, opened: Opened, finished: Finished) -> dict[str, Any]:
        """The chunk that says why the answer ended and how it was made."""
        part: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        return self._chunk(opened, part, finish_reason(finished)) | {
            "metrics": metrics_object(opened, finished)
        }

    def counts(self, opened: Opened, finished: Finished) -> dict[str, Any]:
        """The chunk of token counts, without a choice."""
        return self._envelope(opened, None, is_chunk=True) | {
            "usage": usage_object(finished.usage),
            "metrics": metrics_object(opened, finished),
        }

    def _chunk(self, opened: Opened, part: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": reason}
        return self._envelope(opened, choice, is_chunk=True)

    def _envelope(self, opened: Opened, choice: dict[str, Any] | None, *, is_chunk: bool) -> dict[str, Any]:
        if self.is_chat:
            prefix, kind = "chatcmpl", "chat.completion.chunk" if is_chunk else "chat.completion"
        else:
            prefix, kind = "cmpl", "text_completion"
        return {
            "id": f"{prefix}-{opened.session_id}",
            "object": kind,
            "created": self.created,
            "model": opened.model.name,
            # Equal fingerprint, prompt, settings and seed: equal text.
            "system_fingerprint": opened.model.numerics,
            "session_id": opened.session_id,
            "choices": [] if choice is None else [choice],
        }
