"""The probe finds arithmetic that depends on its company, in each of the ways it can."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.core.types import Exactness
from forerun.engine.interface import Segment
from forerun.engine.load import load_engine
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.probe import probe, probe_once
from forerun.engine.random_model import save_tiny_model
from tests.engine.tiny_models import tiny_engine

Logits = list[NDArray[np.float32]]


class Disturbed:
    """An engine whose logits change by one unit in the last place where `when` says so."""

    def __init__(self, engine: PagedEngine, when: Callable[[Sequence[Segment]], bool]) -> None:
        self._engine = engine
        self._when = when
        self.model, self.capacity = engine.model, engine.capacity
        self.open, self.close = engine.open, engine.close

    def forward(self, segments: Sequence[Segment]) -> Logits:
        found = self._engine.forward(segments)
        if self._when(segments):
            return [np.nextafter(logits, np.float32(np.inf)) for logits in found]
        return found


def test_kernels_are_bitwise(engine: PagedEngine) -> None:
    assert probe(engine) is Exactness.BITWISE
    assert engine.pool.session_ids == ()


@pytest.mark.parametrize(
    "when",
    [
        pytest.param(lambda s: len(s[0].token_ids) == 11, id="eleven rows"),
        pytest.param(lambda s: len(s[0].token_ids) == 256, id="256 rows"),
        pytest.param(lambda s: len(s[0].token_ids) == 1, id="one row"),
        pytest.param(lambda s: len(s) > 1, id="a neighbour"),
        pytest.param(lambda s: s[0].start > 200, id="a long KV, decoding"),
        pytest.param(
            lambda s: s[0].session_id.endswith("other") and s[0].num_logits > 0, id="a shared prefix"
        ),
        pytest.param(lambda s: len(s[0].token_ids) == 5, id="chunks of five"),
    ],
)
def test_a_last_bit_that_depends_on_company_is_found(
    tiny: Path, when: Callable[[Sequence[Segment]], bool]
) -> None:
    engine = tiny_engine(tiny, positions=1024)
    assert probe(Disturbed(engine, when)) is Exactness.NUMERIC


def test_a_context_of_a_few_tokens_is_probed_too(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, max_context=24)
    engine, _ = load_engine(str(tmp_path), threads=1, pool_bytes=1 << 20)
    assert engine.model.exact is Exactness.BITWISE
    assert probe(Disturbed(engine, lambda s: len(s[0].token_ids) == 3)) is Exactness.NUMERIC


def test_a_result_is_kept_for_equal_numerics_and_threads(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    engine = tiny_engine(tiny, positions=1024)
    disturbed = Disturbed(engine, lambda s: len(s) > 1)
    (tmp_path / "probes").rename(tmp_path / "old")
    assert probe_once(disturbed, 1) is Exactness.NUMERIC
    assert probe_once(engine, 1) is Exactness.NUMERIC
    assert probe_once(engine, 2) is Exactness.BITWISE
