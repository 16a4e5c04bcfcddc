"""One session's part in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.core.draft_tree import Node
from forerun.engine.interface import Segment
from verifier_service.session import Session


@dataclass(frozen=True, slots=True)
class Turn:
    """One session's part in the pass being made. `num_fed` settled tokens, then the plan's."""

    session: Session
    num_fed: int
    plan: tuple[Node, ...]
    stream: int | None
    draws: bool  # its next token is drawn in this pass

    def segment(self) -> Segment:
        """The rows it wants from the engine."""
        session = self.session
        fed = session.tree.token_ids[session.computed : session.computed + self.num_fed]
        rows = [*fed, *(node.token_id for node in self.plan)]
        return Segment(
            session.key,
            session.computed,
            rows,
            len(self.plan) + 1 if self.draws else 0,
            session.decider.sampler,
        )
