"""The pool's bookkeeping against a model of it that remembers every session's text."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forerun.engine.interface import PoolFullError, Segment
from forerun.engine.kv import BLOCK, KvPool

NAMES = st.sampled_from("abcd")
# Few tokens, so that texts agree often.
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=70)


class PoolAgainstTexts(RuleBasedStateMachine):
    """`texts` is what each session holds; `written` what was last written at each place of each block."""

    @initialize(num_blocks=st.integers(4, 16))
    def start(self, num_blocks: int) -> None:
        self.pool = KvPool(num_blocks)
        self.texts: dict[str, list[int]] = {}
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}

    @rule(name=NAMES, text=TEXTS)
    def open(self, name: str, text: list[int]) -> None:
        held = self.pool.open(name, text)
        assert held <= len(text) - 1
        self.texts[name] = text[:held]

    @rule(name=NAMES)
    def close(self, name: str) -> None:
        self.pool.close(name)
        self.texts.pop(name, None)

    @rule(feeds=st.dictionaries(NAMES, st.tuples(st.integers(0, 100), TEXTS), min_size=1))
    def run(self, feeds: dict[str, tuple[int, list[int]]]) -> None:
        segments = [
            Segment(name, len(self.texts[name]) - back % (len(self.texts[name]) + 1), text, 1)
            for name, (back, text) in feeds.items()
            if name in self.texts
        ]
        before = {name: (self.pool.length(name), list(self.pool.table(name))) for name in self.texts}
        counts = (self.pool.num_held, self.pool.num_idle)
        try:
            copies = self.pool.reserve(segments)
        except PoolFullError:
            assert before == {name: (self.pool.length(name), self.pool.table(name)) for name in self.texts}
            assert counts == (self.pool.num_held, self.pool.num_idle)
            return
        for source, target in copies:
            for at in range(BLOCK):
                self.written[target, at] = self.written.get((source, at), ())
        for segment in segments:
            self._write(segment)
        for segment in segments:
            self.pool.commit(segment)

    def _write(self, segment: Segment) -> None:
        text = self.texts[segment.session_id]
        del text[segment.start :]
        for token in segment.token_ids:
            text.append(token)
            position = len(text) - 1
            block = self.pool.table(segment.session_id)[position // BLOCK]
            self.written[block, position % BLOCK] = tuple(text)

    @invariant()
    def every_session_reads_its_own_text(self) -> None:
        for name, text in self.texts.items():
            assert self.pool.length(name) == len(text)
            for position in range(len(text)):
                block = self.pool.table(name)[position // BLOCK]
                assert self.written[block, position % BLOCK] == tuple(text[: position + 1])

    @invariant()
    def counts_are_those_of_the_tables(self) -> None:
        holders = Counter(block for name in self.texts for block in self.pool.table(name))
        assert self.pool.num_held == len(holders)
        assert self.pool.num_held + self.pool.num_idle <= self.pool.num_blocks


PoolAgainstTexts.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = PoolAgainstTexts.TestCase


def feed(pool: KvPool, name: str, start: int, tokens: list[int]) -> list[tuple[int, int]]:
    segment = Segment(name, start, tokens, 1)
    copies = pool.reserve([segment])
    pool.commit(segment)
    return copies


def test_equal_prefixes_share_blocks() -> None:
    pool = KvPool(8)
    pool.open("a", [1])
    feed(pool, "a", 0, list(range(40)))
    assert pool.open("b", list(range(40))) == 32
    assert pool.table("b") == pool.table("a")[:2]
    assert pool.num_held == 3


def test_a_closed_sessions_prefix_is_found_again() -> None:
    pool = KvPool(8)
    pool.open("a", [1])
    feed(pool, "a", 0, list(range(40)))
    pool.close("a")
    assert (pool.num_held, pool.num_idle) == (0, 2)
    assert pool.open("b", list(range(33))) == 32


def test_the_last_token_is_always_left_to_compute() -> None:
    pool = KvPool(8)
    pool.open("a", [1])
    feed(pool, "a", 0, list(range(32)))
    assert pool.open("b", list(range(32))) == 16


def test_equal_blocks_after_different_ones_are_not_shared() -> None:
    pool = KvPool(8)
    pool.open("a", [1])
    feed(pool, "a", 0, [0] * 16 + [7] * 16)
    assert pool.open("b", [1] * 16 + [7] * 16 + [0]) == 0
    assert pool.open("c", [7] * 16 + [0]) == 0


def test_writing_into_a_shared_block_copies_it() -> None:
    pool = KvPool(8)
    pool.open("a", [1])
    feed(pool, "a", 0, list(range(32)))
    pool.open("b", list(range(33)))
    shared = pool.table("b")[1]
    copies = feed(pool, "b", 20, [99])
    assert copies == [(shared, pool.table("b")[1])]
    assert pool.table("a")[1] == shared
    assert pool.open("c", list(range(33))) == 32


def test_rewriting_an_unshared_block_makes_it_unfindable_as_it_was() -> None:
    pool = KvPool(8)
    pool.open("a", [1])
    feed(pool, "a", 0, list(range(32)))
    assert feed(pool, "a", 20, [99]) == []
    assert pool.open("b", list(range(33))) == 16


def test_two_sessions_that_compute_the_same_end_on_one_block() -> None:
    pool = KvPool(8)
    pool.open("a", [1])
    pool.open("b", [1])
    segments = [Segment("a", 0, list(range(16)), 1), Segment("b", 0, list(range(16)), 1)]
    pool.reserve(segments)
    for segment in segments:
        pool.commit(segment)
    assert pool.table("a") == pool.table("b")
    assert pool.num_held == 1


def test_the_deepest_block_of_the_longest_idle_text_goes_first() -> None:
    pool = KvPool(4)
    for name, token in (("old", 1), ("new", 2)):
        pool.open(name, [0])
        feed(pool, name, 0, [token] * 32)
        pool.close(name)
    pool.open("x", [0])
    feed(pool, "x", 0, [5])
    assert pool.open("again", [1] * 33) == 16
    pool.close("again")
    assert pool.open("again", [2] * 33) == 32


def test_a_full_pool_names_the_session_that_found_no_room() -> None:
    pool = KvPool(2)
    pool.open("a", [0])
    pool.open("b", [0])
    with pytest.raises(PoolFullError) as caught:
        pool.reserve([Segment("a", 0, [1] * 16, 1), Segment("b", 0, [1] * 17, 1)])
    assert caught.value.session_id == "b"
    assert pool.num_held == 0


def test_what_a_rollback_frees_serves_the_same_pass() -> None:
    pool = KvPool(2)
    pool.open("a", [0])
    pool.open("b", [0])
    feed(pool, "a", 0, [1] * 32)
    segments = [Segment("b", 0, [2] * 16, 1), Segment("a", 16, [3], 1)]
    with pytest.raises(PoolFullError):
        pool.reserve(segments)
    pool.reserve([Segment("b", 0, [2] * 16, 1), Segment("a", 16, [], 0)])
    assert pool.num_held == 2


def test_unknown_sessions_gaps_and_doubled_sessions_are_refused() -> None:
    pool = KvPool(4)
    pool.open("a", [0])
    with pytest.raises(KeyError):
        pool.reserve([Segment("b", 0, [1], 1)])
    with pytest.raises(ValueError, match="start 1"):
        pool.reserve([Segment("a", 1, [1], 1)])
    with pytest.raises(ValueError, match="two segments"):
        pool.reserve([Segment("a", 0, [1], 1), Segment("a", 0, [1], 1)])
    assert pool.num_held == 0


def test_a_thousand_sessions_leave_no_block_held() -> None:
    pool = KvPool(16)
    for i in range(1000):
        pool.open(f"s{i}", [i % 7] * 40)
        feed(pool, f"s{i}", pool.length(f"s{i}"), [i % 5] * (i % 60 + 1))
        if i % 3:
            feed(pool, f"s{i}", 0, [i % 11])
        pool.close(f"s{i}")
    assert pool.num_held == 0
    assert pool.session_ids == ()
    assert len(pool._by_content) == pool.num_idle
