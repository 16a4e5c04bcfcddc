"""What a pass of so many rows costs; learned from the passes made."""

from __future__ import annotations

from bisect import bisect_right

KNOTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
# Shape before anything was measured: a memory-bound pass is flat for a few rows, then grows.
_PRIOR_SHAPE = (1.0, 1.02, 1.1, 1.4, 2.0, 3.2, 5.5, 10.0, 19.0)
RATE = 0.15  # share of an error that one pass corrects


class PassCost:
    """Microseconds of a pass as a piecewise linear function of its rows.

    The first pass sets the scale of the whole prior; later ones move the two knots beside them. A pass of one
    row costs what two cost: the engine never computes fewer.
    """

    def __init__(self) -> None:
        self._knots: list[float] = []

    def observe(self, num_rows: int, pass_us: float) -> None:
        """Learn from one pass."""
        left, share = _place(num_rows)
        if not self._knots:
            unit = pass_us / ((1 - share) * _PRIOR_SHAPE[left] + share * _PRIOR_SHAPE[left + 1])
            self._knots = [unit * shape for shape in _PRIOR_SHAPE]
            return
        error = min(pass_us, 3 * self.us(num_rows)) - self.us(
            num_rows
        )  # an outlier is a busy machine, not a cost
        self._knots[left] += RATE * (1 - share) * error
        self._knots[left + 1] += RATE * share * error

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return bool(self._knots)

    def us(self, num_rows: int) -> float:
        """Expected microseconds of a pass of `num_rows` rows; 0 before any pass was seen."""
        if not self._knots:
            return 0.0
        left, share = _place(num_rows)
        return (1 - share) * self._knots[left] + share * self._knots[left + 1]


def _place(num_rows: int) -> tuple[int, float]:
    rows = min(max(num_rows, KNOTS[0]), KNOTS[-1])
    left = min(bisect_right(KNOTS, rows) - 1, len(KNOTS) - 2)
    return left, (rows - KNOTS[left]) / (KNOTS[left + 1] - KNOTS[left])
