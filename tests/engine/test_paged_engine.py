"""What an engine refuses, and what stays as it was then."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forerun.engine.interface import PoolFullError, Segment
from forerun.engine.load import load_engine
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.random_model import save_tiny_model
from tests.engine.tiny_models import tiny_engine

TEXT = list(range(1, 51))


def test_open_returns_how_much_of_the_text_is_held(engine: PagedEngine) -> None:
    assert engine.open("a", TEXT) == 0
    engine.forward([Segment("a", 0, TEXT, 1)])
    assert engine.open("b", TEXT) == 48
    assert engine.open("c", TEXT[:20] + [0] * 30) == 16


def test_opening_an_open_session_restarts_it(engine: PagedEngine) -> None:
    engine.open("a", TEXT)
    engine.forward([Segment("a", 0, TEXT, 1)])
    assert engine.open("a", [9, 9, 9]) == 0
    with pytest.raises(ValueError, match="start 3"):
        engine.forward([Segment("a", 3, [1], 1)])


def test_a_pass_returns_as_many_rows_of_logits_as_asked(engine: PagedEngine) -> None:
    engine.open("a", TEXT)
    engine.open("b", TEXT)
    found = engine.forward([Segment("a", 0, TEXT, 0), Segment("b", 0, TEXT, 7)])
    assert [logits.shape for logits in found] == [(0, 64), (7, 64)]
    assert all(logits.dtype == np.float32 for logits in found)
    assert engine.forward([]) == []


def test_a_cut_without_rows_is_a_rollback(engine: PagedEngine) -> None:
    engine.open("a", TEXT)
    engine.forward([Segment("a", 0, TEXT, 0)])
    engine.forward([Segment("a", 7, [], 0)])
    with pytest.raises(ValueError, match="start 8"):
        engine.forward([Segment("a", 8, [1], 1)])


def test_a_full_pool_changes_nothing(tiny: Path, dtype: str) -> None:
    engine = tiny_engine(tiny, dtype=dtype, positions=512)
    engine.open("a", [0])
    engine.open("b", [0])
    engine.forward([Segment("a", 0, [1] * 400, 0), Segment("b", 0, TEXT, 0)])
    expected = engine.forward([Segment("a", 400, [5], 1), Segment("b", 50, [6], 1)])
    held = engine.pool.num_held
    with pytest.raises(PoolFullError) as caught:
        engine.forward([Segment("a", 10, [3] * 400, 1), Segment("b", 50, [6] * 100, 1)])
    assert caught.value.session_id == "b"
    assert engine.pool.num_held == held
    again = engine.forward([Segment("a", 400, [5], 1), Segment("b", 50, [6], 1)])
    assert [logits.tobytes() for logits in again] == [logits.tobytes() for logits in expected]


def test_idle_blocks_make_room(tiny: Path) -> None:
    engine = tiny_engine(tiny, positions=512)
    for i in range(5):
        engine.open("a", [i])
        engine.forward([Segment("a", 0, [i] * 500, 1)])
        engine.close("a")
    assert engine.pool.num_held == 0
    assert engine.capacity == 512


@pytest.mark.parametrize(
    ("segment", "reason"),
    [
        (Segment("a", 1, [1], 1), "start 1"),
        (Segment("a", -1, [1], 1), "start -1"),
        (Segment("a", 0, [64], 1), "vocabulary"),
        (Segment("a", 0, [-1], 1), "vocabulary"),
        (Segment("a", 0, [1], 2), "2 logits"),
        (Segment("a", 0, [1], -1), "-1 logits"),
        (Segment("a", 0, [1] * 513, 1), "past the context"),
    ],
)
def test_segments_that_are_none_are_refused(engine: PagedEngine, segment: Segment, reason: str) -> None:
    engine.open("a", TEXT)
    with pytest.raises(ValueError, match=reason):
        engine.forward([segment])
    assert engine.pool.num_held == 0


def test_unknown_sessions_are_a_key_error_and_closing_them_no_error(engine: PagedEngine) -> None:
    with pytest.raises(KeyError):
        engine.forward([Segment("nobody", 0, [1], 1)])
    engine.close("nobody")


def test_a_thousand_sessions_leave_no_block_held(engine: PagedEngine) -> None:
    for i in range(1000):
        engine.open("s", [i % 60] * 20)
        engine.forward([Segment("s", 0, [i % 60] * 20, 1)])
        engine.close("s")
    assert engine.pool.num_held == 0
    assert engine.pool.session_ids == ()


def test_the_context_is_used_to_its_last_position(engine: PagedEngine) -> None:
    engine.open("a", [1])
    engine.forward([Segment("a", 0, [1] * 511, 0)])
    (logits,) = engine.forward([Segment("a", 511, [2], 1)])
    assert np.isfinite(logits).all()


def test_broken_weights_give_nan_logits_and_no_crash(tmp_path: Path, dtype: str) -> None:
    save_tiny_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 3] = torch.nan
    save_file(weights, tmp_path / "model.safetensors")
    engine, _ = load_engine(str(tmp_path), dtype=dtype, threads=1, pool_bytes=1 << 20)
    engine.open("a", TEXT)
    (logits,) = engine.forward([Segment("a", 0, TEXT, 3)])
    assert np.isnan(logits).all()


def test_nan_of_one_session_never_reaches_another(tmp_path: Path, dtype: str) -> None:
    save_tiny_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][13] = torch.nan
    save_file(weights, tmp_path / "model.safetensors")
    engine, _ = load_engine(str(tmp_path), dtype=dtype, threads=1, pool_bytes=1 << 20)
    clean = [t for t in TEXT if t != 13]
    engine.open("clean", clean)
    (expected,) = engine.forward([Segment("clean", 0, clean, 5)])
    engine.close("clean")
    for i in range(40):  # every block of the pool has held NaN
        engine.open(f"n{i}", [13])
        engine.forward([Segment(f"n{i}", 0, [13] * 33, 1)])
        engine.close(f"n{i}")
    engine.open("nan", [13])
    engine.open("clean", [0])
    nan, found = engine.forward([Segment("nan", 0, [13] * 3, 1), Segment("clean", 0, clean, 5)])
    assert np.isnan(nan).all()
    assert found.tobytes() == expected.tobytes()
