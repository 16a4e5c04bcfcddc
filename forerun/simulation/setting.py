"""What is simulated: a target, its drafters, the way between them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

# A pass of the verifier has at most so many rows (verifier_service.scheduler.MAX_ROWS).
MAX_ROWS = 512


@dataclass(frozen=True, slots=True)
class PassCurve:
    """Milliseconds of a pass by its rows: linear between knots, flat before the first, straight on after the last."""

    knots: tuple[tuple[int, float], ...]

    def ms(self, num_rows: int) -> float:
        """Return the time of a pass of `num_rows` rows."""
        rows = [row for row, _ in self.knots]
        if num_rows <= rows[0] or len(rows) == 1:
            return self.knots[0][1]
        left = min(bisect_right(rows, num_rows), len(rows) - 1) - 1
        (r0, t0), (r1, t1) = self.knots[left : left + 2]
        return t0 + (t1 - t0) * (num_rows - r0) / (r1 - r0)

    def scaled(self, first_ms: float) -> PassCurve:
        """Return the same shape whose smallest pass takes `first_ms`."""
        ratio = first_ms / self.knots[0][1]
        return PassCurve(tuple((row, ms * ratio) for row, ms in self.knots))


# `smollm2-cpu` is measured (two cores, bf16). The other two are assumptions: weights are read once, so a pass is
# flat until arithmetic costs as much as reading.
PRESETS = {
    "smollm2-cpu": PassCurve(
        (
            (2, 14.0),
            (8, 14.7),
            (16, 17.5),
            (17, 21.4),
            (32, 26.0),
            (33, 29.2),
            (48, 31.8),
            (49, 34.8),
            (64, 39.2),
            (65, 42.1),
        )
    ),
    "70b-gpu": PassCurve(((64, 25.0), (128, 28.0), (256, 37.0), (512, 60.0))),
    "7b-gpu": PassCurve(((128, 8.0), (256, 10.5), (512, 17.0))),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One verifier, `sessions` answers under way, `drafters` machines that share them.

    `acceptance[d]`: P(the token `d` places after the settled text is right | those before it are); the last
    entry holds for all deeper ones. `step_ms`: a drafter's time for one more token of up to `carries` sessions
    together, longer in proportion beyond; 0 is look-up, which answers a whole burst at once. `finds`: how often
    look-up has an answer at all.
    """

    curve: PassCurve
    sessions: int = 1
    round_trip_ms: float = 0.0
    step_ms: float = 0.0
    acceptance: tuple[float, ...] = (0.7,)
    finds: float = 1.0
    drafters: int = 1
    carries: int = 64
    window: int = 32
    seed: int = 0

    def right(self, depth: int) -> float:
        """Return the acceptance at `depth`, counted from 0."""
        return self.acceptance[min(depth, len(self.acceptance) - 1)]

    @property
    def plain_ms(self) -> float:
        """Time of a plain pass: one row a session."""
        return self.curve.ms(self.sessions)
