"""A row's logits have the same bits whatever is computed beside it, however the text was cut."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.engine.interface import Segment
from forerun.engine.load import load_engine
from forerun.engine.paged_engine import PagedEngine
from tests.engine.tiny_models import tiny_engine

VOCAB = 64
LENGTH = 200
TEXT = [int(x) for x in np.random.default_rng(3).integers(0, VOCAB, LENGTH)]
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fresh_logits(engine: PagedEngine, text: Sequence[int], count: int) -> np.ndarray:
    """The last rows' logits of a prefill in one pass into an empty pool position."""
    engine.open("fresh", [0])
    (logits,) = engine.forward([Segment("fresh", 0, text, count)])
    engine.close("fresh")
    return logits


@pytest.fixture
def expected(engine: PagedEngine) -> np.ndarray:
    return fresh_logits(engine, TEXT, LENGTH)


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.tobytes() == expected.tobytes()


cuts = st.lists(st.integers(1, LENGTH - 1), max_size=12, unique=True).map(sorted)


@quick
@given(cuts=cuts)
def test_chunking_changes_no_bit(engine: PagedEngine, expected: np.ndarray, cuts: list[int]) -> None:
    engine.open("s", [0])
    edges = [0, *cuts, LENGTH]
    found = [engine.forward([Segment("s", a, TEXT[a:b], b - a)])[0] for a, b in pairwise(edges)]
    assert same_bits(np.concatenate(found), expected)


@quick
@given(rows=st.integers(1, 40), at=st.integers(41, LENGTH))
def test_the_number_of_rows_changes_no_bit(
    engine: PagedEngine, expected: np.ndarray, rows: int, at: int
) -> None:
    engine.open("s", [0])
    engine.forward([Segment("s", 0, TEXT[: at - rows], 0)])
    (found,) = engine.forward([Segment("s", at - rows, TEXT[at - rows : at], rows)])
    assert same_bits(found, expected[at - rows : at])


@quick
@given(
    neighbours=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 12)), max_size=4),
    before=st.integers(0, 4),
    at=st.integers(10, LENGTH),
)
def test_neighbours_change_no_bit(
    engine: PagedEngine, expected: np.ndarray, neighbours: list[tuple[int, int]], before: int, at: int
) -> None:
    segments = []
    for i, (length, rows) in enumerate(neighbours):
        other = [(t * 7 + i) % VOCAB for t in TEXT[: length + rows]]
        engine.open(f"n{i}", [0])
        engine.forward([Segment(f"n{i}", 0, other[:length], 0)])
        segments.append(Segment(f"n{i}", length, other[length:], 1))
    engine.open("s", [0])
    engine.forward([Segment("s", 0, TEXT[: at - 3], 0)])
    place = min(before, len(segments))
    segments.insert(place, Segment("s", at - 3, TEXT[at - 3 : at], 3))
    found = engine.forward(segments)[place]
    for segment in segments:
        engine.close(segment.session_id)
    assert same_bits(found, expected[at - 3 : at])


@quick
@given(detours=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 16)), max_size=6))
def test_after_rollbacks_logits_are_those_of_a_fresh_prefill(
    engine: PagedEngine, expected: np.ndarray, detours: list[tuple[int, int]]
) -> None:
    engine.open("s", [0])
    engine.forward([Segment("s", 0, TEXT[:100], 0)])
    held = 100
    for back, rows in detours:
        start = max(0, held - back)
        wrong = [(t + 1) % VOCAB for t in TEXT[start : start + rows]]
        engine.forward([Segment("s", start, wrong, 1)])
        engine.forward([Segment("s", start, TEXT[start : start + rows], 0)])
        held = start + rows
    (found,) = engine.forward([Segment("s", held, TEXT[held:LENGTH], LENGTH - held)])
    assert same_bits(found, expected[held:])


@quick
@given(shared=st.integers(0, LENGTH - 1), other=st.integers(1, 60))
def test_a_shared_prefix_gives_the_bits_of_a_fresh_one(
    engine: PagedEngine, expected: np.ndarray, shared: int, other: int
) -> None:
    first = TEXT[:shared] + [(t + 1) % VOCAB for t in TEXT[:other]]
    engine.open("first", [0])
    engine.forward([Segment("first", 0, first, 0)])
    held = engine.open("s", TEXT)
    assert held >= shared // 16 * 16 - 16
    (found,) = engine.forward([Segment("s", held, TEXT[held:], LENGTH - held)])
    engine.close("first")
    assert same_bits(found, expected[held:])


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(family_smollm_like: Path, dtype: str, threads: int) -> None:
    found = []
    for count in (1, threads):
        engine, _ = load_engine(str(family_smollm_like), dtype=dtype, threads=count, pool_bytes=32 << 20)
        engine.open("s", [0])
        found.append(engine.forward([Segment("s", 0, TEXT, LENGTH)])[0])
        found.append(engine.forward([Segment("s", LENGTH - 5, TEXT[-5:], 5)])[0])
    assert same_bits(found[0], found[2])
    assert same_bits(found[1], found[3])


@pytest.mark.usefixtures("no_kernels")
@settings(quick, max_examples=8)
@given(cuts=cuts, rows=st.integers(1, 20))
def test_without_kernels_chunking_and_rows_change_no_bit(
    tiny_modules: PagedEngine, cuts: list[int], rows: int
) -> None:
    expected = fresh_logits(tiny_modules, TEXT, LENGTH)
    tiny_modules.open("s", [0])
    edges = [0, *cuts, LENGTH]
    found = [tiny_modules.forward([Segment("s", a, TEXT[a:b], b - a)])[0] for a, b in pairwise(edges)]
    assert same_bits(np.concatenate(found), expected)
    (again,) = tiny_modules.forward([Segment("s", LENGTH - rows, TEXT[-rows:], rows)])
    assert same_bits(again, expected[-rows:])


def test_a_prompt_longer_than_a_pass_takes_is_the_same_as_row_by_row(tiny: Path, dtype: str) -> None:
    engine = tiny_engine(tiny, dtype=dtype)
    text = (TEXT * 3)[:500]
    expected = fresh_logits(engine, text, 500)
    engine.open("s", [0])
    engine.forward([Segment("s", 0, text[:400], 0)])
    found = [engine.forward([Segment("s", at, [text[at]], 1)])[0] for at in range(400, 500)]
    assert same_bits(np.concatenate(found), expected[400:])
