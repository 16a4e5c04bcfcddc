"""Look-up: what followed the last time these tokens stood here."""

from __future__ import annotations

from collections.abc import Sequence

from drafter_service.sources.source import Ask, Drawn
from forerun.core.lookup import Lookup
from forerun.core.types import ModelInfo

# One equal token alone is chance more often than repetition.
MIN_MATCH = 2


class NgramSource:
    """Drafts from the session's own tokens and its drafted tail, without law; fits every vocabulary."""

    name = "ngram"
    model: ModelInfo | None = None
    max_context: int | None = None

    def __init__(self) -> None:
        self._texts: dict[str, tuple[Lookup, int]] = {}  # and the length of text each look-up holds

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn]:
        """Return the continuation of the longest earlier match of at least two tokens, or nothing."""
        return [self._look_up(ask) for ask in asks]

    async def forget(self, key: str) -> None:
        """Drop the session's index."""
        self._texts.pop(key, None)

    def _look_up(self, ask: Ask) -> Drawn:
        lookup, known = self._texts.get(ask.key) or (Lookup(), 0)
        lookup.extend(ask.token_ids[known : ask.num_settled])
        self._texts[ask.key] = (lookup, ask.num_settled)
        tail = ask.token_ids[ask.num_settled :]
        found = tuple(lookup.propose(tail, ask.length, min_match=MIN_MATCH))[: ask.length]
        return Drawn(found, ends=len(found) < ask.length)
