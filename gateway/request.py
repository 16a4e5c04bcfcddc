"""A request for an answer, as both doors understand it."""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.core.types import Acceptance, Sampling


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asked for; exactly one of `prompt`, `messages`, `token_ids` is set."""

    prompt: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None  # (role, content), oldest first
    token_ids: tuple[int, ...] | None = None
    request_id: str = ""
    session_id: str = ""  # adds a turn to this conversation
    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    acceptance: Acceptance = Acceptance.AUTO
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    no_draft: bool = False
    ignore_end_tokens: bool = False
