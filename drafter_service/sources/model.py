"""A smaller model of the same vocabulary, run step by step over all sessions at once."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from drafter_service import metrics
from drafter_service.sources.source import Ask, Drawn
from forerun.core.types import ModelInfo
from forerun.engine.executor import EngineThread
from forerun.engine.interface import Engine, PoolFullError, Segment

# Rows of one pass at most: a long prompt is fed in pieces of this size, so that it holds no other session
# up for long.
MAX_ROWS = 256

log = structlog.get_logger()


class ModelSource:
    """Drafts with a causal language model; one token a session and pass.

    Invariant: `_fed[key]` are the tokens whose KV the engine holds for that session. A new text keeps the
    prefix both have in common and feeds the rest, so whatever was torn, settled or drawn by someone else,
    the KV is that of a fresh prefill. `_fed` belongs to the engine's thread.
    """

    def __init__(self, engine: Engine, thread: EngineThread, name: str | None = None) -> None:
        self._engine = engine
        self._thread = thread
        self._fed: dict[str, tuple[int, ...]] = {}
        self.name = f"model:{name or engine.model.name}"
        self.model: ModelInfo | None = engine.model
        self.max_context: int | None = min(engine.model.max_context, engine.capacity)

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn]:
        """Return the next token of every session whose text is fed by now, from one pass over all of them."""
        answers: list[Drawn] = await self._thread.run(self._pass, asks)
        return answers

    async def forget(self, key: str) -> None:
        """Drop the session's KV."""
        await self._thread.run(self._close, key)

    def _pass(self, asks: Sequence[Ask]) -> list[Drawn]:
        answers = {ask.key: Drawn() for ask in asks}
        waiting = list(asks)
        while waiting:
            segments = self._segments(waiting)
            try:
                with metrics.FORWARD_SECONDS.time():
                    found = self._engine.forward(segments)
            except PoolFullError as full:
                if not self._make_room(full, waiting):
                    answers[full.session_id] = Drawn(ends=True)
                    waiting = [ask for ask in waiting if ask.key != full.session_id]
                continue
            by_key = {ask.key: ask for ask in waiting}
            for segment, rows in zip(segments, found, strict=True):
                ask = by_key[segment.session_id]
                self._fed[ask.key] = ask.token_ids[: segment.start + len(segment.token_ids)]
                if segment.num_logits:
                    token_id, law = ask.proposer.draw(rows[-1], len(ask.token_ids))
                    answers[ask.key] = Drawn((token_id,), () if law is None else (law,))
            break
        return [answers[ask.key] for ask in asks]

    def _segments(self, asks: Sequence[Ask]) -> list[Segment]:
        """The rows of the next pass, shortest rests first: no session in mid-burst waits for a prompt."""
        starts = {ask.key: self._start(ask) for ask in asks}
        segments: list[Segment] = []
        rows_left = MAX_ROWS
        for ask in sorted(asks, key=lambda ask: len(ask.token_ids) - starts[ask.key]):
            start = starts[ask.key]
            end = min(len(ask.token_ids), start + rows_left)
            if end > start:
                num_logits = 1 if end == len(ask.token_ids) else 0
                segments.append(
                    Segment(ask.key, start, ask.token_ids[start:end], num_logits, ask.proposer.sampler)
                )
                rows_left -= end - start
        return segments

    def _start(self, ask: Ask) -> int:
        """How many leading tokens of the text have KV; the last one is always fed, for its logits."""
        fed = self._fed.get(ask.key)
        if fed is None:
            known = self._engine.open(ask.key, ask.token_ids)
            fed = self._fed[ask.key] = ask.token_ids[:known]
        return shared_length(fed, ask.token_ids[:-1])

    def _make_room(self, full: PoolFullError, waiting: Sequence[Ask]) -> bool:
        """Take the KV of a session that draws nothing in this pass; False if there is none."""
        busy = {ask.key for ask in waiting}
        idle = next((key for key in self._fed if key not in busy), None)
        victim = full.session_id if idle is None else idle
        log.info("kv pool full", session=full.session_id, dropped=victim)
        self._close(victim)
        return idle is not None

    def _close(self, key: str) -> None:
        self._fed.pop(key, None)
        self._engine.close(key)


def shared_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest prefix that both have."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # Halving compares slices in C: a text of thousands of tokens costs microseconds.
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
