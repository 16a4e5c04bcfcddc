"""How likely a drafted token is to be accepted, by depth; learned from decided tests alone."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

MAX_DEPTH = 16  # deeper tokens share the last entry
DECAY = 0.97  # weight an old test keeps with each new one at its depth: about the last thirty count
PRIOR_TESTS = 4.0  # what a source is believed before its own tests count, in tests
PRIOR_FIRST, PRIOR_NEXT = 0.5, 0.7  # a first token is harder to guess than one that follows an accepted one


class Survival:
    """P(the token at depth d is accepted | those before it were), for one source or one session of it.

    A session's estimate shrinks to its source's by `PRIOR_TESTS` tests, a source's to a fixed prior. Every
    update comes from a test that was decided, so lengths chosen from it keep rejection sampling's selection
    rule.
    """

    def __init__(self, parent: Survival | None = None) -> None:
        self._parent = parent
        self._tested = [0.0] * MAX_DEPTH
        self._accepted = [0.0] * MAX_DEPTH
        self._reach: list[float] = []  # kept until the next test of its own
        # Of the passes that accepted tokens of it, the share that accepted one which nobody had drafted before it.
        self.brings: float = parent.brings if parent else 1.0

    def observe(self, num_tested: int, num_accepted: int) -> None:
        """Learn from one chain: its first `num_accepted` tokens were accepted; one more was rejected if tested."""
        self._reach = []
        if self._parent is not None:
            self._parent.observe(num_tested, num_accepted)
        for depth in range(min(num_tested, MAX_DEPTH)):
            self._tested[depth] = DECAY * self._tested[depth] + 1.0
            self._accepted[depth] = DECAY * self._accepted[depth] + (depth < num_accepted)

    def brought(self, *, one: bool) -> None:
        """Learn from a pass that accepted tokens of it whether one of them was its alone, or its before others'."""
        if self._parent is not None:
            self._parent.brought(one=one)
        self.brings += (one - self.brings) / 8

    def at(self, depth: int) -> float:
        """P(accepted | reached) at `depth`, counted from 0; strictly between 0 and 1."""
        depth = min(depth, MAX_DEPTH - 1)
        prior = self._parent.at(depth) if self._parent else (PRIOR_NEXT if depth else PRIOR_FIRST)
        return (self._accepted[depth] + PRIOR_TESTS * prior) / (self._tested[depth] + PRIOR_TESTS)

    def reach(self, length: int) -> list[float]:
        """P(all of the first d + 1 tokens are accepted) for d below `length`; falling."""
        if len(self._reach) < length:
            self._reach = list(accumulate((self.at(depth) for depth in range(length)), mul))
        return self._reach[:length]

    @property
    def num_tests(self) -> float:
        """Tests of a first token that still count, those of its source in other sessions included."""
        return self._parent.num_tests if self._parent else self._tested[0]
