"""torch's form of the Llama family computes transformers' logits, whatever is in the pass with them."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun.core.types import Exactness
from forerun.engine.cuda import arithmetic
from forerun.engine.cuda.forward import TILE
from forerun.engine.interface import Segment
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.probe import probe
from forerun.engine.random_model import save_tiny_model
from forerun.errors import InvalidRequest
from tests.engine.test_against_transformers import TEXT, stock_logits
from tests.engine.tiny_models import MODELS

Load = Callable[..., PagedEngine]


def our_logits(engine: PagedEngine) -> np.ndarray:
    """Half of the text in one pass, then three rows at a time."""
    engine.open("s", TEXT)
    half = len(TEXT) // 2
    found = engine.forward([Segment("s", 0, TEXT[:half], half)])
    for at in range(half, len(TEXT), 3):
        found += engine.forward([Segment("s", at, TEXT[at : at + 3], 3)])
    engine.close("s")
    return np.concatenate(found)


@pytest.mark.parametrize("name", MODELS)
def test_torch_computes_transformers_logits_in_fp32(
    family: Callable[[str], Path], torch_engine: Load, name: str
) -> None:
    expected = stock_logits(family(name))
    np.testing.assert_allclose(our_logits(torch_engine(family(name))), expected, atol=5e-4 * expected.std())


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_torch_in_bf16_is_as_near_to_fp32_as_transformers_is(
    family: Callable[[str], Path], torch_engine: Load, name: str
) -> None:
    expected = stock_logits(family(name))
    stock_error = np.abs(stock_logits(family(name), torch.bfloat16) - expected).mean()
    found = our_logits(torch_engine(family(name), dtype="bfloat16"))
    assert np.abs(found - expected).mean() < 1.1 * stock_error


def test_the_probe_runs_and_leaves_no_session(tiny: Path, torch_engine: Load, dtype: str) -> None:
    engine = torch_engine(tiny, dtype=dtype)
    probe(engine)
    assert engine.pool.session_ids == ()


def test_on_a_gpu_every_row_is_bitwise_the_same(
    tiny: Path, torch_engine: Load, device: torch.device, dtype: str
) -> None:
    found = probe(torch_engine(tiny, dtype=dtype))
    if device.type == "cuda":  # on CPUs sums over the keys depend on the number of rows
        assert found is Exactness.BITWISE


def test_every_bucket_in_use_gives_a_row_the_bits_of_the_tile(
    tiny: Path, torch_engine: Load, dtype: str
) -> None:
    engine = torch_engine(tiny, dtype=dtype)
    text = [int(x) for x in np.random.default_rng(5).integers(0, 64, 300)]
    buckets = engine._forward.buckets
    assert TILE in buckets
    engine.open("s", [0])
    (expected,) = engine.forward([Segment("s", 0, text, TILE)])
    for bucket in buckets:
        rows = min(bucket, TILE)
        (found,) = engine.forward([Segment("s", len(text) - bucket, text[-bucket:], rows)])
        assert found.tobytes() == expected[-rows:].tobytes(), bucket


def test_a_bucket_of_other_bits_is_not_used(
    tiny: Path, torch_engine: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = arithmetic.fn.linear

    def other_kernel_for_two_rows(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return plain(x, *others) * (1.0 + 1e-6 * (len(x) == 2))

    monkeypatch.setattr(arithmetic.fn, "linear", other_kernel_for_two_rows)
    assert 2 not in torch_engine(tiny)._forward.buckets


def test_sessions_of_all_lengths_share_passes(tiny: Path, torch_engine: Load, dtype: str) -> None:
    engine = torch_engine(tiny, dtype=dtype)
    rng = np.random.default_rng(2)
    texts = {
        f"s{i}": [int(x) for x in rng.integers(0, 64, length)] for i, length in enumerate((1, 9, 90, 260))
    }
    alone = {}
    for session, text in texts.items():
        engine.open("alone", [0])
        (alone[session],) = engine.forward([Segment("alone", 0, text, 1)])
    for session, text in texts.items():
        engine.open(session, [text[0]])
        engine.forward([Segment(session, 0, text[:-1], 0)])
    segments = [Segment(s, len(t) - 1, t[-1:], 1) for s, t in texts.items()]
    segments.insert(2, Segment("none", 0, [], 0))
    engine.open("none", [0])
    together = engine.forward(segments)
    del together[2]
    scale = 1e-4 if dtype == "float32" else 0.05
    for found, expected in zip(together, alone.values(), strict=True):
        np.testing.assert_allclose(found, expected, atol=scale * expected.std())


def test_many_sessions_want_more_logits_than_one_head_gives(tiny: Path, torch_engine: Load) -> None:
    engine = torch_engine(tiny)
    num_sessions = TILE + 20
    for i in range(num_sessions):
        engine.open(f"s{i}", [0])
    together = engine.forward([Segment(f"s{i}", 0, [i % 64, 5], 2) for i in range(num_sessions)])
    engine.open("alone", [0])
    for i in (0, TILE - 1, TILE, num_sessions - 1):
        (alone,) = engine.forward([Segment("alone", 0, [i % 64, 5], 2)])
        np.testing.assert_allclose(together[i], alone, atol=1e-4)


def test_rollbacks_shared_blocks_and_chunks_change_nothing_that_matters(
    tiny: Path, torch_engine: Load
) -> None:
    engine = torch_engine(tiny)
    text = [int(x) for x in np.random.default_rng(8).integers(0, 64, 200)]
    engine.open("fresh", [0])
    (expected,) = engine.forward([Segment("fresh", 0, text, 200)])
    engine.open("s", [0])
    found = [
        engine.forward([Segment("s", a, text[a:b], b - a)])[0] for a, b in pairwise([0, 1, 17, 100, 200])
    ]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-3)
    engine.forward([Segment("s", 150, [1, 2, 3], 1)])
    held = engine.open("other", text)
    assert held > 0
    (again,) = engine.forward([Segment("other", held, text[held:], 200 - held)])
    np.testing.assert_allclose(again, expected[held:], atol=1e-3)
    (back,) = engine.forward([Segment("s", 150, text[150:], 50)])
    np.testing.assert_allclose(back, expected[150:], atol=1e-3)


def test_a_broken_session_does_not_show_in_another_that_gets_its_blocks(
    tiny: Path, torch_engine: Load
) -> None:
    engine = torch_engine(tiny, pool_bytes=512 * 2 * 2 * 2 * 16 * 4)
    text = list(range(60))
    engine.open("s", [0])
    (expected,) = engine.forward([Segment("s", 0, text, 1)])
    engine.close("s")
    for pool in (engine._forward._work.keys, engine._forward._work.values):
        pool.fill_(float("nan"))
    engine.open("t", [63])
    (found,) = engine.forward([Segment("t", 0, text, 1)])
    np.testing.assert_array_equal(found, expected)


def test_a_short_context_works(tmp_path: Path, torch_engine: Load) -> None:
    save_tiny_model(tmp_path, max_context=24)
    engine = torch_engine(tmp_path)
    engine.open("s", [0])
    (found,) = engine.forward([Segment("s", 0, list(range(24)), 24)])
    assert np.isfinite(found).all()


def test_a_pool_smaller_than_a_context_is_refused(tiny: Path, torch_engine: Load) -> None:
    with pytest.raises(InvalidRequest, match="512 positions"):
        torch_engine(tiny, pool_bytes=10_000)
