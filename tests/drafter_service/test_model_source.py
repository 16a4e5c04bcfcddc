"""A drafting model's KV is always that of a fresh prefill, whatever was torn, settled or drawn by others."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drafter_service.sources.model import MAX_ROWS, ModelSource, shared_length
from drafter_service.sources.source import Ask
from forerun.core.proposer import proposer
from forerun.core.types import Mode, Sampling
from forerun.engine.executor import EngineThread

GREEDY = proposer(Mode.GREEDY, Sampling(), b"", bytes(32))


@pytest.fixture
def thread():
    thread = EngineThread()
    yield thread
    thread.close()


def ask(token_ids, key="s", draws=GREEDY):
    return Ask(key, tuple(token_ids), len(token_ids), 4, draws, 0)


def fresh(engine, token_ids):
    return int(np.argmax(engine.logits(list(token_ids))))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
async def test_after_any_history_the_draft_is_that_of_a_fresh_prefill(make_engine, seed):
    rng = random.Random(seed)
    engine, thread = make_engine(capacity=400), EngineThread()
    source = ModelSource(engine, thread)
    texts = {key: [rng.randrange(16) for _ in range(rng.randint(1, 40))] for key in "abc"}
    for _ in range(25):
        asks = [ask(text, key) for key, text in texts.items() if rng.random() < 0.7]
        drawn = await source.draw(asks)
        for one, answer in zip(asks, drawn, strict=True):
            if answer.token_ids:
                assert answer.token_ids == (fresh(engine, one.token_ids),)
                texts[one.key].extend(answer.token_ids)
        key = rng.choice("abc")
        match rng.randrange(4):
            case 0:  # torn: the last tokens are others
                cut = rng.randint(1, len(texts[key]))
                texts[key] = [*texts[key][:cut], rng.randrange(16)]
            case 1:  # settled further than was drafted
                texts[key].extend(rng.randrange(16) for _ in range(rng.randint(1, 5)))
            case 2:
                await source.forget(key)
    thread.close()


async def test_a_pass_feeds_only_what_the_kv_lacks(make_engine, thread):
    engine = make_engine()
    source = ModelSource(engine, thread)
    text = [1, 2, 3, 4, 5]
    await source.draw([ask(text)])
    await source.draw([ask([*text, 6])])
    await source.draw([ask([1, 2, 3, 9, 9])])
    fed = [(s.start, tuple(s.token_ids), s.num_logits) for (s,) in engine.passes]
    assert fed == [(0, (1, 2, 3, 4, 5), 1), (5, (6,), 1), (3, (9, 9), 1)]


async def test_sessions_share_one_pass(make_engine, thread):
    engine = make_engine()
    source = ModelSource(engine, thread)
    asks = [ask([1, 2, 3], "a"), ask([4, 5], "b"), ask([6], "c")]
    drawn = await source.draw(asks)
    assert len(engine.passes) == 1
    assert [one.token_ids for one in drawn] == [(fresh(engine, one.token_ids),) for one in asks]


async def test_a_long_prompt_is_fed_in_pieces_and_delays_no_other_session(make_engine, thread):
    engine = make_engine(max_context=2048)
    source = ModelSource(engine, thread)
    long = ask([i % 16 for i in range(2 * MAX_ROWS)], "long")
    short = ask([1, 2], "short")
    answers = [await source.draw([long, short]) for _ in range(3)]
    assert all(other.token_ids for _, other in answers)
    assert [own.token_ids for own, _ in answers] == [(), (), (fresh(engine, long.token_ids),)]
    assert not any(own.ends for own, _ in answers)
    assert all(sum(len(s.token_ids) for s in segments) <= MAX_ROWS for segments in engine.passes)


async def test_greedy_drafts_argmax_and_coupled_the_shared_draw(make_engine, thread):
    engine = make_engine()
    source = ModelSource(engine, thread)
    key = bytes(range(32))
    coupled = proposer(Mode.COUPLED, Sampling(1.0), key, bytes(32))
    elsewhere = proposer(Mode.COUPLED, Sampling(1.0), key, b"\1" * 32)
    for length in range(1, 9):
        text = list(range(length))
        (drawn,) = await source.draw([ask(text, "c", coupled)])
        expected, _ = elsewhere.draw(engine.logits(text), length)
        assert (drawn.token_ids, drawn.laws) == ((expected,), ())


async def test_rejection_mode_ships_the_law_it_drew_from(make_engine, thread):
    source = ModelSource(make_engine(), thread)
    (drawn,) = await source.draw(
        [ask([1, 2, 3], "r", proposer(Mode.REJECTION, Sampling(1.0), b"", bytes(32)))]
    )
    (law,) = drawn.laws
    assert drawn.token_ids[0] in law.token_ids
    assert abs(law.probs.sum() - 1) < 1e-5


async def test_when_the_pool_is_full_idle_sessions_go_first_and_nobody_fails(make_engine, thread):
    engine = make_engine(capacity=24)
    source = ModelSource(engine, thread)
    await source.draw([ask([1] * 10, "idle")])
    (drawn,) = await source.draw([ask([2] * 20, "busy")])
    assert drawn.token_ids == (fresh(engine, [2] * 20),)
    assert set(engine.kv) == {"busy"}
    (drawn,) = await source.draw([ask([3] * 30, "huge")])
    assert (drawn.token_ids, drawn.ends) == ((), True)
    (drawn,) = await source.draw([ask([2] * 20, "busy")])
    assert drawn.token_ids == (fresh(engine, [2] * 20),)


async def test_the_context_is_the_smaller_of_the_models_and_the_pools(make_engine, thread):
    assert ModelSource(make_engine(max_context=50), thread).max_context == 50
    assert ModelSource(make_engine(capacity=30, max_context=50), thread).max_context == 30


async def test_forgetting_frees_the_kv(make_engine, thread):
    engine = make_engine()
    source = ModelSource(engine, thread)
    await source.draw([ask([1, 2], "a")])
    await source.forget("a")
    await source.forget("never known")
    assert engine.kv == {}


@given(st.lists(st.integers(0, 1), max_size=30), st.lists(st.integers(0, 1), max_size=30))
def test_shared_length_is_that_of_the_longest_common_prefix(a, b):
    shared = shared_length(tuple(a), tuple(b))
    assert a[:shared] == b[:shared]
    assert shared in {len(a), len(b)} or a[shared] != b[shared]
