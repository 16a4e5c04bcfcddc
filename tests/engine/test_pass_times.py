"""What passes take is measured within the pool, and leaves nothing behind."""

from collections.abc import Sequence
from pathlib import Path

from forerun.engine.interface import Segment
from forerun.engine.load import load_engine
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.pass_times import pass_times
from forerun.engine.random_model import save_tiny_model
from tests.engine.test_probe import Logits
from tests.engine.tiny_models import tiny_engine


class Counted:
    """An engine that notes the rows of its passes."""

    def __init__(self, engine: PagedEngine) -> None:
        self._engine = engine
        self.model, self.capacity = engine.model, engine.capacity
        self.open, self.close = engine.open, engine.close
        self.rows: list[int] = []

    def forward(self, segments: Sequence[Segment]) -> Logits:
        self.rows.append(sum(len(segment.token_ids) for segment in segments))
        return self._engine.forward(segments)


def test_passes_of_more_and_more_rows_are_timed_until_they_are_dear(tiny: Path) -> None:
    engine = tiny_engine(tiny, positions=1024)
    counted = Counted(engine)
    found = pass_times(counted)
    counts = list(found)
    assert counts == sorted(counts)
    assert counts[0] == 2
    assert all(found[count] > 0 for count in counts)
    assert all(counted.rows.count(count) >= 2 for count in counts)
    assert engine.pool.session_ids == ()


def test_no_pass_is_timed_that_is_longer_than_the_context(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, max_context=24)
    engine, _ = load_engine(str(tmp_path), threads=1, pool_bytes=1 << 20)
    assert max(pass_times(engine)) <= 24
