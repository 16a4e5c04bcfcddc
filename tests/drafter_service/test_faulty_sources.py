"""Sources made worse for comparisons do exactly the one thing they are for."""

from __future__ import annotations

import pytest

from drafter_service.session import Counts, DraftSession
from drafter_service.sources.faulty import NEVER_S, Slow, Stalling
from drafter_service.sources.in_turns import InTurns
from drafter_service.sources.load import open_source
from drafter_service.sources.replay import Faults, ReplaySource
from drafter_service.sources.source import Ask, Drawn
from forerun.core.types import Mode, Verdict
from forerun.errors import InvalidRequest

TEXT = list(range(100, 200))


class TokenByToken:
    """One right token a draw, as a model gives them."""

    name, model, max_context = "steps", None, None

    async def draw(self, asks):
        return [Drawn((TEXT[len(ask.token_ids)],)) for ask in asks]

    async def forget(self, key):
        pass


@pytest.fixture(params=["all at once", "token by token"])
def right(request):
    return ReplaySource([TEXT], Faults()) if request.param == "all at once" else TokenByToken()


def session_of(make_snapshot) -> DraftSession:
    snapshot = make_snapshot(Mode.GREEDY, token_ids=tuple(TEXT[:3]), window=12, next_length=4)
    return DraftSession("s", snapshot, max_context=None, entropy=bytes(32), counts=Counts())


async def messages_until_it_rests(session, source) -> list:
    """What goes out, as the drafting loop draws it, until the session asks for no more."""
    out = []
    while (ask := session.ask()) is not None:
        (drawn,) = await source.draw([ask])
        message = session.take(ask, drawn)
        if message is not None:
            out.append((message, drawn.delay_s))
    return out


def verdict(session, num_tokens: int, accepted: int, *, seen_id: int, held: int, head: int) -> Verdict:
    base = session.tree.base
    return Verdict(
        base, tuple(TEXT[base : base + num_tokens]), accepted, accepted,
        head_node=head, seen_id=seen_id, held=held, next_length=4, window=12,
    )  # fmt: skip


async def test_a_source_runs_ahead_and_one_in_turns_does_not(make_snapshot, right):
    ahead = await messages_until_it_rests(session_of(make_snapshot), right)
    assert [len(message.token_ids) for message, _ in ahead] == [4, 4, 4]
    in_turns = await messages_until_it_rests(session_of(make_snapshot), InTurns(right))
    assert [message.token_ids for message, _ in in_turns] == [tuple(TEXT[3:7])]


async def test_in_turns_the_next_burst_follows_once_all_of_the_last_one_is_decided(make_snapshot, right):
    session, source = session_of(make_snapshot), InTurns(right)
    await messages_until_it_rests(session, source)
    assert session.apply(verdict(session, 2, 2, seen_id=4, held=2, head=2))
    told = [message for message, _ in await messages_until_it_rests(session, source)]
    assert [message.token_ids for message in told] == [()], "half of it decided: only an acknowledgement"
    assert session.apply(verdict(session, 2, 2, seen_id=4, held=0, head=4))
    told = [message for message, _ in await messages_until_it_rests(session, source)]
    assert [message.token_ids for message in told] == [tuple(TEXT[7:11])]


async def test_a_forgotten_session_begins_with_a_turn_of_its_own(right):
    source = InTurns(right)
    first = Ask("s", tuple(TEXT[:3]), 3, 4, None, 0)
    later = Ask("s", tuple(TEXT[:7]), 3, 4, None, 0)
    assert (await source.draw([first]))[0].token_ids
    assert (await source.draw([later])) == [Drawn(ends=True)]
    await source.forget("s")
    assert (await source.draw([first]))[0].token_ids


async def test_a_slow_source_holds_every_message_back(make_snapshot, right):
    told = await messages_until_it_rests(session_of(make_snapshot), Slow(right, 0.3))
    assert [delay_s for _, delay_s in told] == [0.3, 0.3, 0.3]
    assert next(message.token_ids for message, _ in told) == tuple(TEXT[3:7])


async def test_a_stalling_source_sends_its_first_message_and_no_other(make_snapshot, right):
    told = await messages_until_it_rests(session_of(make_snapshot), Stalling(right))
    assert [delay_s for _, delay_s in told] == [0.0, NEVER_S, NEVER_S]


async def test_each_session_of_a_stalling_source_hears_a_first_message():
    source = Stalling(ReplaySource([TEXT], Faults()))
    asks = [Ask(key, tuple(TEXT[:3]), 3, 4, None, 0) for key in ("a", "b")]
    assert [one.delay_s for one in await source.draw(asks)] == [0.0, 0.0]
    assert [one.delay_s for one in await source.draw(asks)] == [NEVER_S, NEVER_S]
    await source.forget("a")
    assert [one.delay_s for one in await source.draw(asks)] == [0.0, NEVER_S]


@pytest.mark.parametrize(
    ("spec", "kind", "name"),
    [
        ("sync:ngram", InTurns, "sync:ngram"),
        ("slow:300:ngram", Slow, "slow:ngram"),
        ("stall:ngram", Stalling, "stall:ngram"),
        ("slow:1.5:sync:ngram", Slow, "slow:sync:ngram"),
    ],
)
async def test_a_prefix_names_the_fault(spec, kind, name):
    async with open_source(spec, None) as source:
        assert isinstance(source, kind)
        assert source.name == name


@pytest.mark.parametrize(
    "spec",
    [
        "sync:",
        "sync",
        "slow:ngram",
        "slow:-1:ngram",
        "slow:nan:ngram",
        "slow:inf:ngram",
        "slow:5:",
        "stall:x",
    ],
)
async def test_a_fault_that_means_nothing_is_refused(spec):
    with pytest.raises(InvalidRequest) as caught:
        async with open_source(spec, None):
            pass
    assert caught.value.field == "source"
