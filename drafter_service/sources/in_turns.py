"""A source that takes turns with the verifier: what drafting is without running ahead."""

from __future__ import annotations

from collections.abc import Sequence

from drafter_service.sources.source import Ask, Drawn, Source
from forerun.core.types import ModelInfo


class InTurns:
    """Another source's guesses, a burst at a time: the next one only once all of the last one is decided.

    A burst is known by the position at which it ends, which stays the same however many draws it takes. Whether
    to draw depends on counts alone, as rejection mode demands.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ends: dict[str, int] = {}
        self.name = f"sync:{source.name}"
        self.model: ModelInfo | None = source.model
        self.max_context: int | None = source.max_context

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn]:
        """Return the source's tokens for a burst that is begun or under way; else nothing until a verdict."""
        wanted = [ask for ask in asks if self._is_turn(ask)]
        drawn = await self._source.draw(wanted) if wanted else []
        answers = {ask.key: one for ask, one in zip(wanted, drawn, strict=True)}
        return [answers.get(ask.key, Drawn(ends=True)) for ask in asks]

    async def forget(self, key: str) -> None:
        """Drop the session's burst, and what the source keeps for it."""
        self._ends.pop(key, None)
        await self._source.forget(key)

    def _is_turn(self, ask: Ask) -> bool:
        end = len(ask.token_ids) + ask.length
        if len(ask.token_ids) == ask.num_settled:
            self._ends[ask.key] = end
        return self._ends.get(ask.key) == end
