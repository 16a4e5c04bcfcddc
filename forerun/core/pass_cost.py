"""What a pass of so many rows costs: measured before the first one, then learned from the passes made."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

import numpy as np

# Kernels compute whole tiles, and graphs whole shapes: costs are stairs, which mostly rise just after such numbers.
KNOTS = (2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 48, 49, 64, 65, 96, 97, 128, 129, 256, 257, 512)
# Shape where nothing was measured: a memory-bound pass is flat for a few rows, then grows.
_GUESS = ((2, 4, 8, 16, 32, 64, 128, 256, 512), (1.0, 1.02, 1.1, 1.4, 2.0, 3.2, 5.5, 10.0, 19.0))
_PRIOR_SHAPE = tuple(float(np.interp(knot, *_GUESS)) for knot in KNOTS)
# What rows add beside all that a busy service does, over what they add alone (32 to 48 rows: 25 to 48 %, 22 % alone).
BUSY = 1.5
PACE_RATE = 0.15  # share of an error that one pass corrects in the machine's pace
SHAPE_RATE = 0.1  # and in the shape, where the pass had other rows than those before it
REFRESH = 16  # passes; the shape changes slowly, and making its table takes longer than looking up in it
OUTLIER = 3.0  # a pass that takes longer by more is a busy machine, not a cost


class PassCost:
    """Microseconds of a pass: the machine's pace now, times a shape over its rows, piecewise linear.

    The two are learned apart because whatever else runs on a machine slows every pass alike. The pace follows
    every pass; the shape, which decides what a further row costs, is corrected only as far as a pass had other
    rows than the ones before it, so that a machine that slows down makes no row dearer and none cheaper. More
    rows never cost less. A pass of one row costs what two cost: the engine never computes fewer.
    """

    def __init__(self) -> None:
        self._pace_us = 0.0
        self._num_seen = 0
        self._table: list[float] = []
        self._least_steps: list[float] = []
        self._least_shares: dict[int, float] = {}
        self._shape = list(_PRIOR_SHAPE)
        self._usual = [0.0] * len(KNOTS)  # how much of each knot the last passes had, on average
        self._tabulate()

    def begin(self, pass_us: Mapping[int, float]) -> None:
        """Start from measured passes, microseconds by number of rows; beyond the largest the guess goes on from it.

        A pass that took longer than one of more rows was disturbed, and counts as that one. What rows add to the
        smallest pass counts `BUSY` times: they were measured with nothing else to do.
        """
        rows = sorted(pass_us)
        grown = list(accumulate((pass_us[count] for count in reversed(rows)), min))[::-1]
        for knot, count in enumerate(KNOTS):
            if count <= rows[-1]:
                self._shape[knot] = 1 + BUSY * (float(np.interp(count, rows, grown)) / grown[0] - 1)
            else:
                self._shape[knot] = self._shape[knot - 1] * _PRIOR_SHAPE[knot] / _PRIOR_SHAPE[knot - 1]
        self._tabulate()

    def observe(self, num_rows: int, pass_us: float) -> None:
        """Learn from one pass; the first one sets the pace alone."""
        left, share = _place(num_rows)
        here = [0.0] * len(KNOTS)
        here[left], here[left + 1] = 1 - share, share
        if not self.known:
            self._pace_us, self._usual = pass_us / self.relative(num_rows), here
            return
        error = min(pass_us / self.us(num_rows), OUTLIER) - 1
        self._pace_us *= 1 + PACE_RATE * error
        for knot, weight in enumerate(here):
            unusual = weight - self._usual[knot]
            self._usual[knot] += PACE_RATE * unusual
            self._shape[knot] *= 1 + SHAPE_RATE * unusual * error
        self._shape = list(accumulate(self._shape, max))
        self._num_seen += 1
        if self._num_seen % REFRESH == 0:
            self._tabulate()

    @property
    def known(self) -> bool:
        """Whether any pass was seen."""
        return self._pace_us > 0

    def us(self, num_rows: int) -> float:
        """Expected microseconds of a pass of `num_rows` rows; 0 before any pass was seen."""
        return self._pace_us * self.relative(num_rows)

    def relative(self, num_rows: int) -> float:
        """Cost of a pass of `num_rows` rows, in smallest passes."""
        return self._table[min(num_rows, KNOTS[-1])]

    def least_step(self, num_rows: int) -> float:
        """The least that any one row adds from `num_rows` rows on, in smallest passes."""
        return self._least_steps[min(num_rows, KNOTS[-1] - 1)]

    def least_share(self, num_rows: int) -> float:
        """What a row adds to a pass of `num_rows` rows at best, in shares of what one of these costs.

        At best: as one of so many further rows, up to as many again, that they cost least each.
        """
        share = self._least_shares.get(num_rows)
        if share is None:
            more = np.asarray(self._table[num_rows : 2 * num_rows + 1])
            steps = (more[1:] - more[0]) / np.arange(1, len(more))
            share = float(steps.min() * num_rows / more[0]) if len(steps) else math.inf
            self._least_shares[num_rows] = share
        return share

    def _tabulate(self) -> None:
        table = np.interp(np.arange(KNOTS[-1] + 1), KNOTS, self._shape)
        self._table = table.tolist()
        self._least_shares.clear()
        self._least_steps = np.minimum.accumulate(np.diff(table)[::-1])[::-1].tolist()


def _place(num_rows: int) -> tuple[int, float]:
    rows = min(max(num_rows, KNOTS[0]), KNOTS[-1])
    left = min(bisect_right(KNOTS, rows) - 1, len(KNOTS) - 2)
    return left, (rows - KNOTS[left]) / (KNOTS[left + 1] - KNOTS[left])
