"""Survival estimates that answer quickly when asked for the same again and again."""

from __future__ import annotations

from forerun.core.survival import Survival


class Remembered(Survival):
    """Another estimate, whose reach is computed once until `forget`: 512 sessions ask for it in every pass."""

    def __init__(self, inner: Survival) -> None:
        super().__init__()
        self._inner = inner
        self._reach: dict[int, list[float]] = {}

    def observe(self, num_tested: int, num_accepted: int) -> None:
        self._inner.observe(num_tested, num_accepted)
        self.forget()

    def forget(self) -> None:
        """Compute anew: something was observed, maybe elsewhere."""
        self._reach.clear()

    def at(self, depth: int) -> float:
        return self._inner.at(depth)

    def reach(self, length: int) -> list[float]:
        if length not in self._reach:
            self._reach[length] = self._inner.reach(length)
        return self._reach[length]

    @property
    def num_tests(self) -> float:
        return self._inner.num_tests
