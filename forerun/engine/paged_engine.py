"""The engine: sessions over one KV pool, passes over one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forerun.core.types import Exactness, ModelInfo, Said
from forerun.engine.interface import Segment
from forerun.engine.kv import BLOCK, KvPool
from forerun.engine.rows import LOGITS, Forward, pack_rows, split_rows


class PagedEngine:
    """An `Engine` whose KV lies in shared blocks of 16 positions."""

    def __init__(
        self, model: ModelInfo, forward: Forward, num_blocks: int, masked_ids: Sequence[int] = ()
    ) -> None:
        self._model = model
        self._forward = forward
        self._pool = KvPool(num_blocks)
        self._masked_ids = list(masked_ids)  # ids inside the vocabulary that name no token

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""
        return self._model

    @property
    def capacity(self) -> int:
        """Positions the KV pool holds in all."""
        return self._pool.num_blocks * BLOCK

    @property
    def held(self) -> int:
        """Positions of them that open sessions hold, in whole blocks; any thread may ask."""
        return self._pool.num_held * BLOCK

    @property
    def pool(self) -> KvPool:
        """Who holds which block, for counts."""
        return self._pool

    def set_exactness(self, exact: Exactness) -> None:
        """Record what the start-up probe found."""
        self._model = replace(self._model, exact=exact)

    def open(self, session_id: str, token_ids: Sequence[int]) -> int:
        """Make a session known; return how many leading positions of `token_ids` already have KV."""
        return self._pool.open(session_id, token_ids)

    def close(self, session_id: str) -> None:
        """Forget a session; its KV stays reusable for equal prefixes until room is needed."""
        self._pool.close(session_id)

    def forward(self, segments: Sequence[Segment]) -> list[Said]:
        """Run one pass; return logits (num_logits, vocab_size), float32, per segment, or the tokens named there.

        Raises PoolFullError before anything changed; KeyError for an unknown session; ValueError for a segment that
        is none: a gap, an id outside the vocabulary, a position past the context, more logits than rows.
        """
        for segment in segments:
            self._check(segment)
        for source, target in self._pool.reserve(segments):
            self._forward.copy_block(source, target)
        rows = pack_rows(segments, [self._pool.table(segment.session_id) for segment in segments])
        logits = np.empty((len(rows.logit_rows), self._model.vocab_size), np.float32)
        token_ids = np.full(len(rows.logit_rows), LOGITS)
        done = 0
        for part in split_rows(rows, self._forward.max_rows):
            until = done + len(part.logit_rows)
            if len(part.token_ids) and (named := self._forward.run(part, logits[done:until])) is not None:
                token_ids[done:until] = named
            done = until
        if self._masked_ids:
            logits[:, self._masked_ids] = -np.inf
        for segment in segments:
            self._pool.commit(segment)
        said: list[Said] = []
        done = 0
        for segment in segments:
            here = slice(done, done := done + segment.num_logits)
            all_named = segment.num_logits and (token_ids[here] != LOGITS).all()
            said.append(token_ids[here] if all_named else logits[here])
        return said

    def _check(self, segment: Segment) -> None:
        count = len(segment.token_ids)
        if not 0 <= segment.num_logits <= count:
            raise ValueError(f"{segment.num_logits} logits of {count} rows")
        if segment.start + count > self._model.max_context:
            raise ValueError(
                f"position {segment.start + count - 1} is past the context {self._model.max_context}"
            )
        if count and not 0 <= min(segment.token_ids) <= max(segment.token_ids) < self._model.vocab_size:
            raise ValueError(f"a token id outside the vocabulary of {self._model.vocab_size}")
