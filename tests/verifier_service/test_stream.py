"""Verdicts to one drafter: complete, in order, merged while unsent; silence has a limit."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from forerun.core.survival import Survival
from forerun.core.types import FinishReason, Verdict
from verifier_service.stream import UNREAD_LIMIT_NS, DraftStream


def stream() -> DraftStream:
    return DraftStream(1, "d", "ngram", Survival(), laws=False)


def verdicts_of(lengths: list[int], base: int = 10) -> list[Verdict]:
    verdicts, token = [], 0
    for length in lengths:
        tokens = tuple(range(token, token + length))
        verdicts.append(
            Verdict(
                base,
                tokens,
                num_drafted=length,
                num_accepted=length // 2,
                seen_id=token,
                held=length,
                window=8,
            )
        )
        base, token = base + length, token + length
    return verdicts


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=30))
async def test_whatever_is_merged_the_tokens_are_all_there_in_order(script: list[tuple[int, bool]]) -> None:
    told, heard = stream(), []
    verdicts = verdicts_of([length for length, _ in script])
    reader = told.verdicts()
    for verdict, (_, reads) in zip(verdicts, script, strict=True):
        told.push(verdict)
        if reads:
            heard.append(await anext(reader))
    told.close()
    heard += [verdict async for verdict in reader]
    base = 10
    for verdict in heard:
        assert verdict.base == base
        base += len(verdict.token_ids)
    assert [t for v in heard for t in v.token_ids] == [t for v in verdicts for t in v.token_ids]
    assert sum(v.num_drafted for v in heard) == sum(v.num_drafted for v in verdicts)
    assert sum(v.num_accepted for v in heard) == sum(v.num_accepted for v in verdicts)
    assert (heard[-1].seen_id, heard[-1].held) == (verdicts[-1].seen_id, verdicts[-1].held)


def test_an_unread_verdict_is_forgiven_for_five_seconds() -> None:
    told = stream()
    assert not told.unread(time.monotonic_ns() + 10 * UNREAD_LIMIT_NS)
    told.push(verdicts_of([1])[0])
    now = time.monotonic_ns()
    assert not told.unread(now)
    assert told.unread(now + UNREAD_LIMIT_NS + 1)


async def test_a_verdict_that_was_taken_is_not_unread() -> None:
    told = stream()
    told.push(verdicts_of([1])[0])
    await anext(told.verdicts())
    assert not told.unread(time.monotonic_ns() + 10 * UNREAD_LIMIT_NS)


async def test_the_last_verdict_ends_the_stream() -> None:
    told = stream()
    told.push(Verdict(3, (1,), finish_reason=FinishReason.STOP))
    assert [v.finish_reason async for v in told.verdicts()] == [FinishReason.STOP]


def test_a_drafter_owes_an_answer_until_it_speaks_about_the_text() -> None:
    told = stream()
    assert told.owes(5)
    told.push(Verdict(4, (1,), window=8))
    assert told.heard(5, 0, time.monotonic_ns()) > 0
    assert not told.owes(5)
    assert told.owes(6)
    assert told.heard(5, 3, time.monotonic_ns()) == 0
    assert told.answers < 1


def test_a_drafter_that_was_told_to_stop_owes_nothing() -> None:
    told = stream()
    told.push(Verdict(4, (1,), window=0))
    assert not told.owes(5)


def test_counts_are_told_once() -> None:
    told = stream()
    told.learn(3, 2, brought=True)
    told.learn(1, 0, brought=True)
    assert told.take_counts() == (4, 2)
    assert told.take_counts() == (0, 0)


def test_an_answer_is_timed_from_the_verdict_it_answers() -> None:
    told = stream()
    for index, base in enumerate((10, 11, 12)):
        told.told(base, 1_000 * index)
    assert told.heard(10, 2, 9_000) == 9_000
    assert told.heard(12, 2, 9_500) == 7_500


def test_a_wait_in_vain_makes_the_next_one_less_likely() -> None:
    told = stream()
    hope = told.answers
    told.unanswered()
    assert told.answers < hope
