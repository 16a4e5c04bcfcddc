"""How likely a drafted token is to be accepted, by depth; learned from decided tests alone."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

MAX_DEPTH = 16  # deeper tokens share the last entry
DECAY = 0.97  # weight an old test keeps with each new one at its depth: about the last thirty count
PRIOR_TESTS = 4.0  # what a source is believed before its own tests count, in tests
# A drafter ten passes away that is right four times in five has a token tested every ten passes.
VAIN_MESSAGES, VAIN_PASSES = 4, 120
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
        # Messages with tokens, and passes after the first of them, since a token was last tested. A session goes on
        # from where its source last was elsewhere.
        self.untested: tuple[int, int] = parent.untested if parent else (0, 0)

    def observe(self, num_tested: int, num_accepted: int) -> None:
        """Learn from one chain: its first `num_accepted` tokens were accepted; one more was rejected if tested."""
        self._reach = []
        self._set_untested(0, 0)
        if self._parent is not None:
            self._parent.observe(num_tested, num_accepted)
        for depth in range(min(num_tested, MAX_DEPTH)):
            self._tested[depth] = DECAY * self._tested[depth] + 1.0
            self._accepted[depth] = DECAY * self._accepted[depth] + (depth < num_accepted)

    def sent(self) -> None:
        """Learn that a message with tokens came; in vain, unless one of them is tested."""
        messages, passes = self.untested
        self._set_untested(messages + 1, passes)

    def passed_over(self) -> None:
        """Learn that a pass tested no token of it."""
        messages, passes = self.untested
        if messages:
            self._set_untested(messages, passes + 1)

    @property
    def in_vain(self) -> bool:
        """Whether its tokens have come too late, and wrong, for so long that they may as well not come."""
        messages, passes = self.untested
        return messages >= VAIN_MESSAGES and passes >= VAIN_PASSES

    def _set_untested(self, messages: int, passes: int) -> None:
        self.untested = messages, passes
        if self._parent is not None:
            self._parent.untested = self.untested

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
