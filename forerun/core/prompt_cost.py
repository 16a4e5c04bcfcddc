"""What the rows of prompts add to a pass; learned from the passes made, so that tokens beside them keep coming."""

from __future__ import annotations

from collections.abc import Sequence

# Of a pass without prompt rows, so that the gap between two tokens stays below two of them, and below three on a
# machine whose speed wanders by half (1.0: the worst gap of five prompts was 2.9 to 3.4 passes).
MOST_ADDED = 0.8
# A prompt goes on however deep it is; fewer rows cost hardly less, its keys being read all the same.
LEAST_ROWS = 8
RATE = 0.3  # share of an error that one pass corrects
_DEPTH = 256.0  # positions; brings what a row and what its attention cost to one scale
# Before anything was measured, in passes: what a row of products and of attention over _DEPTH positions adds.
_PRIOR = (1 / 40, 1 / 70)


class PromptCost:
    """Microseconds that prompt rows add: so much a row, and so much for each position a row attends to.

    Attention of a long prompt costs more than everything else, so rows alone tell little.
    """

    def __init__(self) -> None:
        self._row_us = 0.0
        self._depth_us = 0.0  # of a row, for each _DEPTH positions it attends to

    def observe(self, rows: Sequence[tuple[int, int]], added_us: float, plain_us: float) -> None:
        """Learn from one pass: `rows` are (how many, from which position) of each prompt in it.

        `added_us` is what the pass took beyond `plain_us`, which it would have taken without them.
        """
        self._rest_on(plain_us)
        count, depth = _work(rows)
        size = count * count + depth * depth
        if not size:
            return
        expected = self._row_us * count + self._depth_us * depth
        error = min(added_us, 3 * expected) - expected  # an outlier is a busy machine, not a cost
        self._row_us = max(self._row_us + RATE * error * count / size, 0.0)
        self._depth_us = max(self._depth_us + RATE * error * depth / size, 0.0)

    def rows_beside(self, plain_us: float, positions: Sequence[int], most: int) -> int:
        """Rows that prompts at `positions` may feed, in equal shares, into a pass that takes `plain_us` without them.

        At least LEAST_ROWS and one a prompt, at most `most`; `most` before any pass was seen.
        """
        if plain_us <= 0 or not positions:
            return most
        self._rest_on(plain_us)
        position = sum(positions) / len(positions)
        row_us = self._row_us + self._depth_us * position / _DEPTH
        room = most if row_us * most <= MOST_ADDED * plain_us else int(MOST_ADDED * plain_us / row_us)
        return min(max(room, LEAST_ROWS, len(positions)), most)

    def _rest_on(self, plain_us: float) -> None:
        if not self._row_us and not self._depth_us:
            self._row_us, self._depth_us = (plain_us * share for share in _PRIOR)


def _work(rows: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Rows in all, and positions they attend to in all, in units of _DEPTH."""
    return float(sum(count for count, _ in rows)), sum(
        count * (start + count / 2) for count, start in rows
    ) / _DEPTH
