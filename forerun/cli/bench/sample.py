"""What one contestant did with the jobs of one cell."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.cli.bench.jobs import Job


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer. `seconds`: from its request to its end, prefill included. Counts only from our own services."""

    job: Job
    token_ids: tuple[int, ...]
    seconds: float
    first_token_s: float
    passes: int | None = None
    num_tested: int | None = None
    num_accepted: int | None = None

    @property
    def rate(self) -> float:
        """Tokens/s of this answer alone."""
        return len(self.token_ids) / self.seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """All answers of a cell, and what came of them in the `seconds` in which no session was idle.

    `services_cpu_s`: processor time of our services meanwhile, where they had nothing to do.
    """

    answers: tuple[Answered, ...]
    tokens: int
    seconds: float
    services_cpu_s: float | None = None

    @property
    def rate(self) -> float:
        """Tokens/s of all sessions together, prefill included."""
        return self.tokens / self.seconds
