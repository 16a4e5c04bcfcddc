"""What a client hears of one answer, whichever door it came through; mirrors `forerun.v1` gateway messages."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.types import Exactness, FinishReason, Mode, ModelInfo, Origin


@dataclass(frozen=True, slots=True)
class Opened:
    """The session exists in the store; offsets count from `prompt_length`."""

    session_id: str
    mode: Mode
    seed: int | None
    prompt_length: int
    model: ModelInfo


@dataclass(frozen=True, slots=True)
class Delta:
    """Committed tokens. `offset`: answer tokens before these. `text`: what became visible with them."""

    offset: int
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of what was committed."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """Sums over the passes of one answer; `acceptance_histogram[i]`: passes that accepted i draft tokens."""

    passes: int = 0
    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    num_salvaged: int = 0
    num_corrections: int = 0
    num_bonus: int = 0
    acceptance_histogram: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one answer went, in milliseconds."""

    first_token_ms: float = 0.0
    total_ms: float = 0.0
    pass_ms: float = 0.0
    wait_ms: float = 0.0
    queue_ms: float = 0.0
    commit_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete. `text`: what was held back and became visible at the end."""

    finish_reason: FinishReason
    usage: Usage
    speculation: Speculation
    timings: Timings
    exact: Exactness
    text: str


Event = Opened | Delta | Finished
