"""An engine that notes what every pass was made of; the model behind it is real."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.types import Said
from forerun.engine.interface import Engine, Segment


class Watched:
    """Passes everything on to `engine`. `passes` holds the segments of each pass, `open_ids` who is open."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.model, self.capacity = engine.model, engine.capacity
        self.passes: list[list[Segment]] = []
        self.open_ids: set[str] = set()

    def open(self, session_id: str, token_ids: Sequence[int]) -> int:
        self.open_ids.add(session_id)
        return self._engine.open(session_id, token_ids)

    def close(self, session_id: str) -> None:
        self._engine.close(session_id)
        self.open_ids.discard(session_id)

    def forward(self, segments: Sequence[Segment]) -> Sequence[Said]:
        self.passes.append(list(segments))
        return self._engine.forward(segments)

    def rows_of(self, session_id: str) -> list[int]:
        """Rows the session had in each pass it took part in."""
        return [
            len(s.token_ids)
            for made in self.passes
            for s in made
            if s.session_id.partition("#")[0] == session_id
        ]
