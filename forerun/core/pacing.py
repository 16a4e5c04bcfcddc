"""When to check drafts, how many of them, and when to wait: what makes drafting never slower than plain
decoding.

Pure: no clock, no I/O. All that is learned comes from decided tests, counts and times, never from drafted
tokens, so in rejection mode every choice made here keeps the selection rule.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from forerun.core.pass_cost import PassCost
from forerun.core.survival import Survival

MAX_BURST = 12  # drafted tokens a burst has at most
MIN_REACH = 0.1  # a burst ends where a token would be reached less often than this
HOPELESS = 0.06  # below this first-token acceptance a drafter costs more than it can give
REDUNDANT = 0.2  # below this share of accepted tokens that it drafted first, a drafter only repeats others
ENOUGH_TESTS = 12.0  # tests before a drafter is called hopeless
RETRY_PASSES = 96  # a drafter that was told to stop is tried again after so many passes
RETRY_SPAN = 6  # for so many passes, so that a drafter some passes away is heard within them
RETRY_WINDOW = 2
# A row must promise so much more than it costs: both are learned, and deciding on it costs as well.
MARGIN = 1.25
JITTER = 1.5  # a wait lasts at most this many expected turnarounds


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one decoding session offers the next pass.

    `available`: drafted tokens in its tree along one chain. `turnaround_us`: expected time until a drafter
    that owes an answer gives it; None when nobody owes one. `answers`: share of answers of that drafter that
    hold tokens.
    """

    survival: Survival
    available: int
    turnaround_us: float | None = None
    answers: float = 1.0


class Pacing:
    """Decides for all sessions of one verifier."""

    def __init__(self) -> None:
        self.cost = PassCost()
        self._sources: dict[str, Survival] = {}
        self._num_streams = 0

    def survival(self, source: str) -> Survival:
        """A fresh estimate for one session of `source`, resting on what the source did elsewhere."""
        return Survival(self._sources.setdefault(source, Survival()))

    def first_pass(self) -> int:
        """How many passes a drafter's new stream counts from: streams are let in to be tried in turns."""
        self._num_streams += 1
        return (self._num_streams - 1) * RETRY_SPAN % RETRY_PASSES

    def burst_length(self, survival: Survival) -> int:
        """Tokens the next burst should have; at least 1."""
        return max(1, sum(reach >= MIN_REACH for reach in survival.reach(MAX_BURST)))

    def window(self, survival: Survival, passes: int, limit: int, num_sessions: int = 1) -> int:
        """Undecided tokens a drafter may have in flight after `passes` passes of its stream: 0 stops it.

        A hopeless drafter is stopped, and let in again for a short try every `RETRY_PASSES` passes: one whose
        tokens are almost never accepted, or never come to be tested, or get no row because none pays beside so many
        sessions, or are mostly those that others had drafted before. One whose source was hopeless in other sessions
        is not let in before its turn.
        """
        wrong = survival.num_tests >= ENOUGH_TESTS and survival.at(0) < HOPELESS
        heeded = survival.at(0) >= MARGIN * self.cost.least_share(num_sessions)
        if heeded and not wrong and survival.brings >= REDUNDANT and not survival.in_vain:
            return limit
        return min(limit, RETRY_WINDOW) if passes % RETRY_PASSES < RETRY_SPAN else 0

    def allot(self, outlooks: Sequence[Outlook], other_rows: int, max_rows: int) -> list[int]:
        """Plan length of each session: spare rows go where they settle most, as many as make the pass settle fastest.

        Starts from one row a session and `other_rows` for prompts, adds rows by what they promise, and keeps as
        many as give most tokens per time: costs are stairs, so that a row may pay only together with others. A
        prompt's row counts as much as a token: it must be computed some time, and who waits behind it is not
        yet decoding. Never more than `max_rows` in all.
        """
        cost = self.cost
        num_rows = len(outlooks) + other_rows
        tokens = float(num_rows)
        offers = [(-o.survival.at(0), index, 0) for index, o in enumerate(outlooks) if o.available]
        heapq.heapify(offers)
        takers: list[int] = []
        most, fastest = 0, tokens / cost.relative(num_rows)
        while offers and num_rows < max_rows:
            negative_reach, index, depth = heapq.heappop(offers)
            if -negative_reach * cost.relative(num_rows) < MARGIN * tokens * cost.least_step(num_rows):
                break  # neither this row nor any after it, which promise less
            takers.append(index)
            num_rows += 1
            tokens -= negative_reach / MARGIN
            if tokens / cost.relative(num_rows) >= fastest:
                most, fastest = len(takers), tokens / cost.relative(num_rows)
            if depth + 1 < outlooks[index].available:
                further = negative_reach * outlooks[index].survival.at(depth + 1)
                heapq.heappush(offers, (further, index, depth + 1))
        lengths = [0] * len(outlooks)
        for index in takers[:most]:
            lengths[index] += 1
        return lengths

    def wait_us(self, outlooks: Sequence[Outlook], other_rows: int = 0, max_rows: int = 512) -> float:
        """Longest time worth waiting, before the next pass, for the answers that are owed; 0: start now.

        Compares tokens per microsecond of waiting once for them with passing on what is here meanwhile and
        finding what is left of them one turnaround later (a draft in flight stays good with the first-token
        acceptance each pass). A draft counts for the tokens of the rows that `allot` would give it, and for
        their cost: what would get no row is not worth a wait.
        """
        wait = max((o.turnaround_us for o in outlooks if o.turnaround_us is not None), default=0.0)
        if wait <= 0 or not self.cost.known:
            return 0.0
        hoped = [
            o if o.turnaround_us is None else replace(o, available=self.burst_length(o.survival))
            for o in outlooks
        ]
        ready, hope, kept = float(len(outlooks)), 0.0, 0.0
        ready_rows = hope_rows = 0
        lengths = self.allot(hoped, other_rows, max_rows)
        passes = max(1, math.ceil(wait / self.cost.us(len(outlooks) + other_rows)))
        for outlook, length in zip(hoped, lengths, strict=True):
            gain = sum(outlook.survival.reach(length))
            if outlook.turnaround_us is None:
                ready, ready_rows = ready + gain, ready_rows + length
            else:
                hope, hope_rows = hope + outlook.answers * gain, hope_rows + length
                kept += outlook.answers * gain * outlook.survival.at(0) ** passes
        if not hope:
            return 0.0
        ready_us = self.cost.us(len(outlooks) + other_rows + ready_rows)
        hope_us = self.cost.us(len(outlooks) + other_rows + ready_rows + hope_rows)
        now = (ready + hope) / (wait + hope_us)
        later_us = (passes + 1) * ready_us + kept / hope * (hope_us - ready_us)
        later = ((passes + 1) * ready + kept) / later_us
        return JITTER * wait if now > later else 0.0
