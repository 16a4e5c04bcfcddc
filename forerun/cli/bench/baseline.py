"""What our services are measured against: one process, the same weights, the same prompt ids, greedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt in tokens, and the exact length of its answer."""

    prompt_ids: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, the seconds it took, and those until its first token was there."""

    token_ids: tuple[int, ...]
    seconds: float
    first_token_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """All answers in order, and the tokens computed for them in so many seconds."""

    answers: tuple[Said, ...]
    tokens: int
    seconds: float


class Baseline(Protocol):
    """One way of generating greedily, without a service."""

    threads: int
    most_sessions: int | None

    def answers(self, asks: Sequence[Ask], sessions: int) -> Done:
        """Answer all of them, `sessions` at a time."""
