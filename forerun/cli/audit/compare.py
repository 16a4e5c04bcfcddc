"""Two answers to one prompt, compared token by token; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

CONTEXT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens by how they were settled, over any number of answers."""

    tokens: int = 0
    passes: int = 0
    tested: int = 0
    accepted: int = 0
    corrected: int = 0
    bonus: int = 0
    salvaged: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which two answers part; None where one has ended. `before`: what they share."""

    prompt_id: str
    position: int
    plain: int | None
    drafted: int | None
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All prompts of one drafter."""

    drafter: str
    prompts: int
    counts: Counts
    differences: tuple[Difference, ...] = field(default=())
    inexact: int = 0  # answers that a failover left `exact: numeric`

    @property
    def agreements(self) -> int:
        return self.prompts - len(self.differences)


def first_difference(prompt_id: str, plain: Sequence[int], drafted: Sequence[int]) -> Difference | None:
    """Return where the answers part; None when they are equal."""
    if list(plain) == list(drafted):
        return None
    shared = next(
        (i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b),
        min(len(plain), len(drafted)),
    )
    return Difference(
        prompt_id,
        shared,
        plain[shared] if shared < len(plain) else None,
        drafted[shared] if shared < len(drafted) else None,
        tuple(plain[max(0, shared - CONTEXT_TOKENS) : shared]),
    )
