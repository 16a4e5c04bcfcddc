"""Sources with the faults of a bad machine: too slow, or stalled. For benchmarks of the worst case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drafter_service.sources.source import Ask, Drawn, Source
from forerun.core.types import ModelInfo

NEVER_S = 86_400.0  # longer than any session


class Slow:
    """Another source's guesses, each message `message_s` late after the one before it."""

    def __init__(self, source: Source, message_s: float) -> None:
        self._source = source
        self._message_s = message_s
        self.name = f"slow:{source.name}"
        self.model: ModelInfo | None = source.model
        self.max_context: int | None = source.max_context

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn]:
        """Return the source's tokens, to be held back."""
        drawn = await self._source.draw(asks)
        return [replace(one, delay_s=one.delay_s + self._message_s) for one in drawn]

    async def forget(self, key: str) -> None:
        """Drop what the source keeps for the session."""
        await self._source.forget(key)


class Stalling:
    """Another source's first message in each session; every later one is held back for good.

    The session stays attached and goes on reading verdicts, so nothing but its silence gives it away.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._spoke: set[str] = set()
        self.name = f"stall:{source.name}"
        self.model: ModelInfo | None = source.model
        self.max_context: int | None = source.max_context

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn]:
        """Return the source's tokens; after a session's first ones, never to be sent."""
        drawn = await self._source.draw(asks)
        return [self._stalled(ask, one) for ask, one in zip(asks, drawn, strict=True)]

    async def forget(self, key: str) -> None:
        """Drop whether the session was spoken to, and what the source keeps for it."""
        self._spoke.discard(key)
        await self._source.forget(key)

    def _stalled(self, ask: Ask, drawn: Drawn) -> Drawn:
        if ask.key in self._spoke:
            return replace(drawn, delay_s=NEVER_S)
        if drawn.token_ids and (drawn.ends or len(drawn.token_ids) >= ask.length):  # the message is complete
            self._spoke.add(ask.key)
        return drawn
