from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.types import FinishReason, Origin, PassRecord, Settled
from gateway.holdback import Holdback
from gateway.store.entry import Entry, from_stream
from gateway.summary import passes

PROMPT = (300, 301)


@pytest.fixture(scope="session")
def text_ids(small):
    return tuple(small.encode("The bell will soon ring again, naïve 東京 😀 waking the city."))


def settle(tokens, cuts, finish=FinishReason.NONE):
    """The tokens as passes end at `cuts` settle them; a pass's record names its tokens."""
    edges = [0, *sorted({c for c in cuts if 0 < c < len(tokens)}), len(tokens)]
    for a, b in pairwise(edges):
        part = tuple(tokens[a:b])
        yield Settled(
            len(PROMPT) + a,
            part,
            (Origin.PLAIN,) * len(part),
            finish if b == len(tokens) else FinishReason.NONE,
            PassRecord(target_token_ids=part),
        )


def release(small, turn, stop, settled, width=1) -> list[Entry]:
    """What is released where `width` passes' tokens come together."""
    holdback = Holdback(small, replace(turn, stop=stop, prompt_length=len(PROMPT)), PROMPT)
    released = []
    pending = list(settled)
    while pending:
        burst, pending = pending[:width], pending[width:]
        entry = holdback.take(burst)
        if entry is not None:
            released.append(entry)
            if entry.finish_reason is not FinishReason.NONE:
                break
    return released


@settings(deadline=None)
@given(
    cuts=st.sets(st.integers(1, 40)),
    stop=st.sampled_from(
        [(), ("bell w",), ("rang", "soon r"), ("東",), ("京 😀", "zzz"), ("the city. And",)]
    ),
    finish=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    width=st.integers(1, 4),
)
def test_what_is_released_depends_on_the_tokens_alone_and_loses_no_pass(
    small, turn, text_ids, cuts, stop, finish, width
):
    entries = release(small, turn, stop, settle(text_ids, cuts, finish), width)
    (whole,) = release(small, turn, stop, settle(text_ids, (), finish))
    token_ids = tuple(t for entry in entries for t in entry.token_ids)
    assert token_ids == whole.token_ids == text_ids[: len(token_ids)]
    assert (entries[-1].finish_reason, entries[-1].cut) == (whole.finish_reason, whole.cut)
    assert all(entry.cut is None for entry in entries[:-1])
    assert entries[-1].finish_reason is (FinishReason.STOP if whole.cut is not None else finish)
    # Entries are consecutive, and so are the pieces in them.
    position = len(PROMPT)
    for entry in entries:
        assert entry.base == position
        assert entry.token_ids or entry.finish_reason is not FinishReason.NONE
        position = entry.end
    # Every pass that ran before the end is there, once, with its tokens.
    seen = passes(entries)
    edges = list(settle(text_ids, cuts, finish))[: len(seen)]
    assert [s.record for s in seen] == [s.record for s in edges]
    for shown, ran in zip(seen, edges, strict=True):
        assert ran.token_ids[: len(shown.token_ids)] == shown.token_ids


def test_committed_tokens_are_not_released_again_after_a_takeover(small, turn, text_ids):
    turn = replace(turn, stop=("soon ring",), prompt_length=len(PROMPT))
    for done in range(4):
        holdback = Holdback(small, turn, (*PROMPT, *text_ids[:done]))
        assert holdback.length == len(PROMPT) + done
        rest = text_ids[done:]
        settled = Settled(len(PROMPT) + done, rest, (Origin.PLAIN,) * len(rest))
        entry = holdback.take([settled])
        (whole,) = release(small, turn, turn.stop, settle(text_ids, ()))
        assert text_ids[:done] + entry.token_ids == whole.token_ids
        assert entry.cut == whole.cut


def test_an_entry_reads_back_as_it_was_written():
    entry = Entry(
        (
            Settled(5, (1, 2), (Origin.DRAFTED, Origin.CORRECTION)),
            Settled(7, (), (), FinishReason.STOP, PassRecord(plan_token_ids=(3,), source="ngram")),
        ),
        cut=0,
    )
    fields = {f"settled{i}".encode(): raw for i, raw in enumerate(entry.serialized())}
    assert from_stream({b"turn": b"4", b"cut": b"0", **fields}) == (4, entry)
