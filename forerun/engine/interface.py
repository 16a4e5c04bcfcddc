"""The narrow interface through which schedulers and drafting loops know an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.core.types import ModelInfo, Said, Sampler


@dataclass(frozen=True, slots=True)
class Segment:
    """One session's rows in one pass.

    The session's KV is cut back to `start` positions first (rollback is a length); then `token_ids` are fed at
    positions start, start + 1, …; logits are returned for the last `num_logits` of them (0: an unfinished prefill).
    With a `sampler` an engine may return the tokens that it names there instead.
    """

    session_id: str
    start: int
    token_ids: Sequence[int]
    num_logits: int
    sampler: Sampler | None = None


class PoolFullError(Exception):
    """The KV pool has no room for `session_id`'s rows. Nothing was computed and nothing changed."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"KV pool full at session {session_id}")
        self.session_id = session_id


class Engine(Protocol):
    """One model on one device. Not thread-safe: one thread owns it (`forerun.engine.executor`)."""

    @property
    def model(self) -> ModelInfo:
        """What is loaded."""

    @property
    def capacity(self) -> int:
        """Positions the KV pool holds in all."""

    @property
    def held(self) -> int:
        """Positions of them that open sessions hold, in whole blocks; any thread may ask."""

    def open(self, session_id: str, token_ids: Sequence[int]) -> int:
        """Make a session known; return how many leading positions of `token_ids` already have KV.

        At most len(token_ids) - 1, so that the last row is always computed. Opening an open session restarts it.
        """

    def forward(self, segments: Sequence[Segment]) -> Sequence[Said]:
        """Run one pass over all segments; return logits (num_logits, vocab_size) per segment.

        Or, where a segment has a sampler, the token ids (num_logits,) if they are cheaper had than the logits.
        A row's logits do not depend on the other rows of the pass, on chunking or on sharing (`model.exact` says
        whether to the bit). Raises PoolFullError before anything changed; KeyError for an unknown session.
        """

    def close(self, session_id: str) -> None:
        """Forget a session; its KV stays reusable for equal prefixes until room is needed. Unknown ids: no effect."""
