"""Forerun's engine in a loop of its own: what a pass costs without services, scheduler and store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forerun.cli.bench.baseline import Ask, Done, Said
from forerun.core.sampling import argmax
from forerun.engine.interface import Engine, Segment

PREFILL_ROWS = 256  # prompt rows of one pass, as the verifier's scheduler has them


@dataclass(slots=True)
class _Running:
    """One answer under way. Invariant: the engine holds KV of the first `computed` tokens of `text`."""

    index: int
    ask: Ask
    started: float
    computed: int
    text: list[int] = field(default_factory=list)
    first_token_s: float = 0.0

    @property
    def key(self) -> str:
        return f"bare-{self.index}"

    @property
    def said(self) -> list[int]:
        return self.text[len(self.ask.prompt_ids) :]


class BareEngine:
    """Plain greedy decoding with continuous batching: as one answer ends, the next prompt joins the pass."""

    most_sessions: int | None = None

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine = engine
        self.threads = threads
        self._num_asked = 0

    def answers(self, asks: Sequence[Ask], sessions: int) -> Done:
        import torch

        torch.set_num_threads(self.threads)
        waiting, done = iter(asks), dict[int, Said]()
        started = time.perf_counter()
        first_index, tokens, ended = self._num_asked, 0, 0.0
        running = [one for _ in range(sessions) for one in self._next(waiting)]
        full = len(running)
        while running:
            for one in self._step(running):
                tokens += 0 if ended else 1
                one.first_token_s = one.first_token_s or time.perf_counter() - one.started
                if len(one.said) == one.ask.num_tokens:
                    self._engine.close(one.key)
                    seconds = time.perf_counter() - one.started
                    done[one.index - first_index] = Said(tuple(one.said), seconds, one.first_token_s)
                    running.remove(one)
                    running.extend(self._next(waiting))
            if len(running) < full and not ended:
                ended = time.perf_counter()
        return Done(tuple(done[index] for index in sorted(done)), tokens, (ended or started) - started)

    def _next(self, waiting: Iterator[Ask]) -> list[_Running]:
        """Return the next answer, its prompt known to the engine; none if nothing waits."""
        ask = next(waiting, None)
        if ask is None:
            return []
        one = _Running(self._num_asked, ask, time.perf_counter(), 0, list(ask.prompt_ids))
        self._num_asked += 1
        one.computed = self._engine.open(one.key, ask.prompt_ids)
        return [one]

    def _step(self, running: Sequence[_Running]) -> list[_Running]:
        """One pass; return the answers that got a token."""
        rows_left, segments, told = PREFILL_ROWS, [], list[_Running]()
        for one in running:
            pending = len(one.text) - one.computed
            rows = 1 if pending == 1 else min(pending, rows_left)
            if rows == 0:
                continue
            rows_left -= rows if pending > 1 else 0
            fed = one.text[one.computed : one.computed + rows]
            segments.append(Segment(one.key, one.computed, fed, int(rows == pending)))
            told.append(one)
        drew = []
        for one, segment, logits in zip(told, segments, self._engine.forward(segments), strict=True):
            one.computed += len(segment.token_ids)
            if segment.num_logits:
                one.text.append(argmax(logits[-1]))
                drew.append(one)
        return drew
