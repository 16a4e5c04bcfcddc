"""The commit script against a model in Python, over random histories of two owners with lost replies."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.core.types import FinishReason, Origin, Settled
from gateway.store.entry import Entry
from gateway.store.store import Claim, Committed, Outcome, Store

PROMPT = (9, 9, 9)


class Model:
    """What design and docstrings say a session is: an epoch, a list of tokens, perhaps an end."""

    def __init__(self) -> None:
        self.epoch = 1
        self.tokens = list(PROMPT)
        self.end: tuple[FinishReason, int | None] | None = None
        self.log: list[Entry] = []

    def commit(self, epoch: int, entry: Entry) -> Committed:
        tokens, base, length = list(entry.token_ids), entry.base, len(self.tokens)
        end = None if entry.finish_reason is FinishReason.NONE else (entry.finish_reason, entry.cut)
        if epoch != self.epoch:
            return Committed(Outcome.FENCED, 0)
        if base > length:
            return Committed(Outcome.SHORT, length)
        if base < length or self.end is not None:
            held = self.tokens[base : base + len(tokens)] == tokens
            same_end = end is None or (end == self.end and base + len(tokens) == length)
            return Committed(Outcome.OK if held and same_end else Outcome.CONFLICT, length)
        if tokens or end:
            self.tokens += tokens
            self.end = end
            self.log.append(entry)
        return Committed(Outcome.OK, len(self.tokens))


# Two token values only, so that slices often agree by chance; bases around the end.
commits = st.tuples(
    st.just("commit"),
    st.integers(-1, 1),  # epoch, from the current one
    st.integers(-4, 2),  # base, from the current length
    st.lists(st.integers(0, 1), max_size=4),
    st.sampled_from([FinishReason.NONE] * 6 + [FinishReason.STOP, FinishReason.LENGTH]),
    st.sampled_from([None, 0, 5]),
)
actions = st.one_of(commits, commits, commits, st.just(("replay",)), st.just(("claim",)))


async def play(url: str, history: list[tuple]) -> None:
    store, model, sent, sid = Store(url), Model(), [], secrets.token_hex(6)
    try:
        await store.create(sid, play.turn, PROMPT)
        for kind, *facts in history:
            if kind == "claim":
                claimed = await store.take_over(sid, held_epoch=model.epoch)
                assert (claimed.claim is Claim.TAKEN) == (model.end is None)
                model.epoch += model.end is None
                continue
            if kind == "commit":
                epoch, base, tokens, finish, cut = facts
                origins = (Origin.DRAFTED,) * len(tokens)
                piece = Settled(max(len(model.tokens) + base, 0), tuple(tokens), origins, finish)
                sent.append((model.epoch + epoch, Entry((piece,), cut if finish.value else None)))
            for epoch, entry in sent[-1:] if kind == "commit" else sent:
                assert await store.commit(sid, epoch, entry) == model.commit(epoch, entry)
        session = await store.read(sid, with_entries=True)
        assert list(session.token_ids) == model.tokens
        assert list(session.entries) == model.log
        assert session.finish_reason is (model.end[0] if model.end else FinishReason.NONE)
        assert session.cut == (model.end[1] if model.end else None)
    finally:
        await store.close()


@pytest.fixture
def played(shared_valkey, turn):
    play.turn = turn
    return shared_valkey.url


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(actions, max_size=14))
def test_script_does_what_the_model_says(played, history):
    asyncio.run(play(played, history))
