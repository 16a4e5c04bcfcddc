"""A session outlives its client, its gateway and its store's process."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import pytest

from forerun.core.types import FinishReason, Mode, Origin, Sampling, Settled
from forerun.errors import (
    AlreadyRunning,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    OffsetBeyondEnd,
    Unavailable,
)
from gateway.request import GenerationRequest
from gateway.store.entry import Entry
from gateway.store.session import SessionStatus, Turn
from gateway.store.store import Claim

ASK = GenerationRequest(prompt="Ring the bell", max_tokens=200)


async def started(gateway, verifier, at: int, **changes):
    """A stream whose verifier waits after `at` committed tokens: the stream, its session id, the stop."""
    stop = verifier.stop_at(at)
    stream = await gateway.generate(replace(ASK, **changes))
    session_id = (await anext(stream)).session_id
    reader = await gateway.resume(session_id, 0)
    await anext(reader)
    await read_until(reader, at)
    await reader.aclose()
    await stop.reached.wait()
    return stream, session_id, stop


async def read_until(stream, num_tokens: int):
    """The events up to that many tokens."""
    text, token_ids = "", ()
    while len(token_ids) < num_tokens:
        event = await anext(stream)
        token_ids += event.token_ids
        text += event.text
    return token_ids, text


async def ended(gateway, session_id: str) -> None:
    generation = gateway.running(session_id)
    if generation is not None:
        await generation.wait()


async def lapsed_session(store, turn: Turn, answer, prompt) -> str:
    """A session as a gateway that was killed leaves it: running, some tokens committed, its lease over."""
    session_id = secrets.token_hex(8)
    await store.create(session_id, turn, prompt)
    if answer:
        piece = Settled(len(prompt), answer, (Origin.PLAIN,) * len(answer))
        await store.commit(session_id, 1, Entry((piece,)))
    return session_id


@pytest.fixture
def greedy(turn, small) -> Turn:
    return replace(
        turn,
        sampling=Sampling(),
        mode=Mode.GREEDY,
        seed=None,
        noise_key=b"",
        stop=(),
        max_tokens=200,
        ignore_end_tokens=False,
        prompt_length=len(small.encode(ASK.prompt)),
        request_id="",
    )


async def test_every_gateway_resumes_from_every_offset_with_the_same_bytes(
    make_gateway, verifier, hear, answer, small
):
    first, second = await make_gateway(verifier), await make_gateway(verifier)
    whole = await hear(await first.generate(replace(ASK, stop=("city",))))
    session_id = whole.opened.session_id
    for offset in range(len(whole.token_ids) + 1):
        for gateway in (first, second):
            heard = await hear(await gateway.resume(session_id, offset))
            assert heard.token_ids == whole.token_ids[offset:]
            before = await text_of_first(gateway, session_id, whole.token_ids[:offset])
            assert before + heard.text == whole.text
            assert heard.opened == whole.opened
            assert replace(heard.finished, text="") == replace(whole.finished, text="")
            if heard.deltas:
                assert heard.deltas[0].offset == offset
    assert len(verifier.requests) == 1


async def text_of_first(gateway, session_id, token_ids):
    """What a client had seen when it had these tokens."""
    session = await gateway.get(session_id)
    part = replace(
        session,
        token_ids=(*session.token_ids[: session.turn.prompt_length], *token_ids),
        finish_reason=FinishReason.NONE,
    )
    return await gateway.text_of(part)


@pytest.mark.parametrize("offset", range(0, 9, 2))
async def test_a_running_answer_is_followed_live_from_another_gateway(
    make_gateway, verifier, hear, answer, offset
):
    first, second = await make_gateway(verifier), await make_gateway(verifier)
    stream, session_id, stop = await started(first, verifier, 8)
    following = asyncio.create_task(hear(await second.resume(session_id, offset)))
    stop.go.set()
    assert (await following).token_ids == answer[offset:]
    await stream.aclose()
    assert len(verifier.requests) == 1


async def test_a_lapsed_session_is_taken_over_and_decoded_on(
    make_gateway, verifier, make_store, shared_valkey, greedy, hear, answer, small, store
):
    dead = make_store(shared_valkey.url, lease_s=0.0)
    prompt = tuple(small.encode(ASK.prompt))
    session_id = await lapsed_session(dead, greedy, answer[:7], prompt)
    gateway = await make_gateway(verifier)
    heard = await hear(await gateway.resume(session_id, 0))
    assert heard.token_ids == answer
    (request,) = verifier.requests
    assert (request.epoch, tuple(request.token_ids)) == (2, (*prompt, *answer[:7]))
    assert (await store.read(session_id)).epoch == 2


async def test_a_lease_that_lapses_while_a_client_follows_is_taken_over(
    make_gateway, verifier, make_store, shared_valkey, greedy, hear, answer, small
):
    dying = make_store(shared_valkey.url, lease_s=0.3)
    session_id = await lapsed_session(dying, greedy, answer[:3], tuple(small.encode(ASK.prompt)))
    gateway = await make_gateway(verifier)
    heard = await hear(await gateway.resume(session_id, 1))
    assert heard.token_ids == answer[1:]
    assert verifier.requests[0].epoch == 2


async def test_of_gateways_racing_for_a_session_one_decodes_and_all_clients_hear_the_same(
    make_gateway, verifier, make_store, shared_valkey, greedy, hear, answer, small
):
    dead = make_store(shared_valkey.url, lease_s=0.0)
    session_id = await lapsed_session(dead, greedy, (), tuple(small.encode(ASK.prompt)))
    gateways = [await make_gateway(verifier) for _ in range(3)]
    streams = [await gateway.resume(session_id, 0) for gateway in gateways for _ in range(2)]
    heard = await asyncio.gather(*map(hear, streams))
    assert [h.token_ids for h in heard] == [answer] * 6
    assert len({h.text for h in heard}) == 1
    assert [request.epoch for request in verifier.requests] == [2]


async def test_a_fenced_gateway_stops_quietly_and_its_client_reads_on(
    make_gateway, make_verifier, hear, answer, store
):
    old, new = await make_verifier(), await make_verifier()
    first, second = await make_gateway(old), await make_gateway(new)
    stream, session_id, stop = await started(first, old, 6)
    # The first gateway is cut off for longer than its lease; another one takes over.
    await store.release(session_id, 1, detached=False)
    heard_by_second = asyncio.create_task(hear(await second.resume(session_id, 2)))
    assert (await heard_by_second).token_ids == answer[2:]
    old.answer = tuple((token + 1) % 300 for token in answer)  # what it would say now must reach nobody
    stop.go.set()
    token_ids, _ = await read_until(stream, len(answer))
    assert token_ids == answer
    assert (await anext(stream)).finish_reason is FinishReason.STOP
    await ended(first, session_id)
    assert (await store.read(session_id)).answer_ids == answer


async def test_a_heartbeat_that_is_refused_ends_the_generation(make_gateway, verifier, store):
    gateway = await make_gateway(verifier, lease_s=0.03)
    _, session_id, _ = await started(gateway, verifier, 4)
    generation = gateway.running(session_id)
    await store.delete(session_id)
    await generation.wait()
    assert generation.end.name == "FENCED"
    await verifier.idle.wait()


async def test_heartbeats_keep_a_silent_session(make_gateway, verifier, make_store, shared_valkey):
    gateway = await make_gateway(verifier, lease_s=3.0)
    _, session_id, _ = await started(gateway, verifier, 4)
    other = make_store(shared_valkey.url)
    claims = [await other.take_over(session_id)] * 2
    while claims[-1].remaining_ms <= claims[-2].remaining_ms:  # until a heartbeat has renewed it
        claims.append(await other.take_over(session_id))
    assert {claim.claim for claim in claims} == {Claim.HELD}


async def test_a_client_that_goes_away_leaves_a_detached_session_that_resume_continues(
    make_gateway, verifier, hear, answer, store
):
    gateway = await make_gateway(verifier, detach_grace_s=0.01)
    stream, session_id, stop = await started(gateway, verifier, 5)
    generation = gateway.running(session_id)
    await stream.aclose()
    await generation.wait()
    await verifier.idle.wait()
    session = await store.read(session_id)
    assert (session.status, session.answer_ids) == (SessionStatus.DETACHED, answer[:5])
    stop.go.set()
    heard = await hear(await gateway.resume(session_id, 3))
    assert heard.token_ids == answer[3:]
    assert [request.epoch for request in verifier.requests] == [1, 2]


async def test_a_client_that_is_back_in_time_finds_the_same_decode(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier)
    stream, session_id, stop = await started(gateway, verifier, 5)
    await stream.aclose()
    resumed = await gateway.resume(session_id, 2)
    stop.go.set()
    assert (await hear(resumed)).token_ids == answer[2:]
    assert len(verifier.requests) == 1


async def test_another_client_keeps_a_generation_alive(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier, detach_grace_s=0.0)
    stream, session_id, stop = await started(gateway, verifier, 5)
    other = await gateway.resume(session_id, 0)
    await stream.aclose()
    stop.go.set()
    assert (await hear(other)).token_ids == answer
    assert len(verifier.requests) == 1


async def test_a_client_that_does_not_read_stops_nothing(make_gateway, verifier, hear, answer, store):
    gateway = await make_gateway(verifier)
    stream = await gateway.generate(ASK)
    opened = await anext(stream)
    await ended(gateway, opened.session_id)
    assert (await store.read(opened.session_id)).status is SessionStatus.FINISHED
    token_ids, _ = await read_until(stream, len(answer))
    assert token_ids == answer


async def test_a_stream_that_was_never_read_still_detaches(make_gateway, verifier, store):
    gateway = await make_gateway(verifier, detach_grace_s=0.0)
    stop = verifier.stop_at(5)
    stream = await gateway.generate(ASK)
    await stop.reached.wait()
    session_id = verifier.requests[0].session_id
    generation = gateway.running(session_id)
    await stream.aclose()
    await generation.wait()
    assert (await store.read(session_id)).status is SessionStatus.DETACHED


async def test_requests_of_one_id_share_one_answer(make_gateway, verifier, hear, answer):
    gateways = [await make_gateway(verifier), await make_gateway(verifier)]
    request = replace(ASK, request_id=secrets.token_hex(8))
    streams = await asyncio.gather(*(gateways[i % 2].generate(request) for i in range(6)))
    heard = await asyncio.gather(*map(hear, streams))
    assert len({h.opened.session_id for h in heard}) == 1
    assert [h.token_ids for h in heard] == [answer] * 6
    assert len(verifier.requests) == 1
    again = await hear(await gateways[1].generate(request))
    assert again.text == heard[0].text
    assert len(verifier.requests) == 1


DIFFERENT = [
    {"prompt": "Ring the other bell"},
    {"prompt": None, "messages": (("user", "Ring the bell"),)},
    {"prompt": None, "token_ids": (1, 2)},
    {"sampling": Sampling(temperature=0.5)},
    {"seed": 3},
    {"max_tokens": 199},
    {"stop": ("soon",)},
    {"no_draft": True},
]


@pytest.mark.parametrize("changes", DIFFERENT, ids=[max(changes) for changes in DIFFERENT])
async def test_another_request_of_that_id_is_refused_on_every_gateway(
    make_gateway, verifier, hear, answer, changes
):
    gateways = [await make_gateway(verifier), await make_gateway(verifier)]
    request = replace(ASK, request_id=secrets.token_hex(8))
    first = await hear(await gateways[0].generate(request))
    for gateway in gateways:
        for session_id in ("", first.opened.session_id):
            with pytest.raises(AlreadyRunning) as refused:
                await gateway.generate(replace(request, session_id=session_id, **changes))
            assert (refused.value.reason, refused.value.field) == ("REQUEST_ID_REUSED", "request_id")
        assert (await hear(await gateway.generate(request))).token_ids == answer
    assert len(verifier.requests) == 1


async def test_another_request_of_a_turns_id_is_refused(make_gateway, verifier, hear):
    gateway = await make_gateway(verifier)
    first = await hear(await gateway.generate(ASK))
    request = replace(ASK, session_id=first.opened.session_id, request_id=secrets.token_hex(8))
    await hear(await gateway.generate(request))
    with pytest.raises(AlreadyRunning):
        await gateway.generate(replace(request, prompt="Ring it again"))


async def test_a_deleted_session_is_gone_for_everybody(make_gateway, verifier):
    first, second = await make_gateway(verifier), await make_gateway(verifier)
    stream, session_id, _ = await started(first, verifier, 5)
    following = await second.resume(session_id, 5)
    await anext(following)
    await first.delete(session_id)
    for reader in (stream, following):
        with pytest.raises(NotFound):
            async for _ in reader:
                pass
    await verifier.idle.wait()
    for action in (first.get(session_id), first.resume(session_id, 0), second.delete(session_id)):
        with pytest.raises(NotFound):
            await action


async def test_an_offset_beyond_the_end_is_refused(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier)
    heard = await hear(await gateway.generate(ASK))
    with pytest.raises(OffsetBeyondEnd):
        await gateway.resume(heard.opened.session_id, len(answer) + 1)
    with pytest.raises(InvalidRequest):
        await gateway.resume("{odd}", 0)


async def test_a_drained_gateway_hands_its_sessions_over_at_once(make_gateway, verifier, hear, answer, store):
    first, second = await make_gateway(verifier), await make_gateway(verifier)
    stream, session_id, stop = await started(first, verifier, 5)
    await first.drain(0.01)
    with pytest.raises(Unavailable) as caught:
        async for _ in stream:
            pass
    assert caught.value.reason == "DRAINING"
    session = await store.read(session_id)
    assert (session.status, session.lease_ms) == (SessionStatus.RUNNING, 0)
    for refused in (first.generate(ASK), first.resume(session_id, 0)):
        with pytest.raises(Unavailable):
            await refused
    assert not await first.healthy()
    stop.go.set()
    assert (await hear(await second.resume(session_id, 5))).token_ids == answer[5:]


async def test_a_draining_gateway_lets_answers_end(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier)
    stream, _, stop = await started(gateway, verifier, 5)
    draining = asyncio.create_task(gateway.drain(100.0))
    stop.go.set()
    assert (await read_until(stream, len(answer)))[0] == answer
    await draining


async def test_numbers_survive_a_takeover(make_gateway, verifier, hear, answer):
    first, second = await make_gateway(verifier), await make_gateway(verifier)
    verifier.chunk = 3
    stream, session_id, stop = await started(first, verifier, 6)
    await stream.aclose()
    await first.drain(0.0)
    stop.go.set()
    finished = (await hear(await second.resume(session_id, 0))).finished
    passes = 2 + -(-(len(answer) - 6) // 3)
    assert finished.speculation.passes == passes
    assert finished.speculation.num_accepted == len(answer) - passes
    assert finished.timings.pass_ms == pytest.approx(passes)


@pytest.mark.processes
async def test_sigkill_of_the_store_between_commits_loses_nothing(
    make_gateway, verifier, valkey, hear, answer
):
    gateway = await make_gateway(verifier, url=valkey.url)
    stops = [verifier.stop_at(at) for at in (3, 6, 9, 12)]
    stream = await gateway.generate(ASK)
    opened = await anext(stream)
    heard = ()
    for stop in stops:
        await stop.reached.wait()
        token_ids, _ = await read_until(stream, stop.at - len(heard))
        heard += token_ids
        valkey.kill()
        stop.go.set()
        valkey.start()
    token_ids, _ = await read_until(stream, len(answer) - len(heard))
    assert heard + token_ids == answer
    assert (await anext(stream)).finish_reason is FinishReason.STOP
    assert (await gateway.get(opened.session_id)).answer_ids == answer
    assert len(verifier.requests) == 1


@pytest.mark.processes
async def test_an_outage_of_the_store_is_waited_out_and_nothing_is_emitted_meanwhile(
    make_gateway, verifier, valkey, answer
):
    gateway = await make_gateway(verifier, url=valkey.url)
    stream, session_id, stop = await started(gateway, verifier, 4)
    await read_until(stream, 4)
    valkey.kill()
    stop.go.set()
    following = asyncio.create_task(anext(stream))
    generation = gateway.running(session_id)
    outage = generation._ledger.beat  # a question that has to fail first
    assert await outage()
    assert not following.done()
    with pytest.raises(Unavailable):
        await gateway.generate(ASK)
    assert not await gateway.healthy()
    valkey.start()
    assert (await following).token_ids[0] == answer[4]
    assert (await read_until(stream, len(answer) - 6))[0] == answer[6:]


@pytest.mark.processes
async def test_an_outage_that_lasts_ends_in_unavailable(make_gateway, verifier, valkey):
    gateway = await make_gateway(verifier, url=valkey.url, store_s=0.05)
    stream, _, stop = await started(gateway, verifier, 4)
    valkey.kill()
    stop.go.set()
    with pytest.raises(Unavailable):
        async for _ in stream:
            pass


async def test_tokens_that_the_store_forgot_are_committed_again(make_gateway, verifier, hear, answer, store):
    verifier.chunk = 2
    gateway = await make_gateway(verifier)
    stream, session_id, stop = await started(gateway, verifier, 2)
    for length in (4, 6):  # one commit each
        later = verifier.stop_at(length)
        stop.go.set()
        reader = await gateway.resume(session_id, 0)
        await anext(reader)
        await read_until(reader, length)
        await reader.aclose()
        stop = later
    # What a server with a lagging disk holds after a crash: the last two commits are gone.
    length = (await store.read(session_id)).turn.prompt_length
    key = f"forerun:{{{session_id}}}"
    held = await store._client.get(f"{key}:tokens")
    ids = [entry_id for entry_id, _ in await store._client.xrange(f"{key}:events")]
    await store._client.set(f"{key}:tokens", held[: (length + 2) * 4])
    kept = await store._client.xrange(f"{key}:events", max=ids[0])
    await store._client.delete(f"{key}:events")
    for entry_id, fields in kept:
        await store._client.xadd(f"{key}:events", fields, id=entry_id)
    stop.go.set()
    token_ids, _ = await read_until(stream, len(answer))
    assert token_ids == answer
    other = await make_gateway(verifier)
    heard = await hear(await other.resume(session_id, 0))
    assert heard.token_ids == answer
    assert heard.finished.speculation.passes == -(-len(answer) // 2)


async def test_a_turn_continues_the_tokens_of_the_last(make_gateway, verifier, hear, answer, small):
    gateway = await make_gateway(verifier)
    first = await hear(await gateway.generate(ASK))
    session_id = first.opened.session_id
    second = await hear(await gateway.generate(replace(ASK, prompt=" again", session_id=session_id)))
    prompt = (*small.encode(ASK.prompt), *answer, *small.encode(" again"))
    assert tuple(verifier.requests[1].token_ids) == prompt
    assert second.opened.session_id == session_id
    assert second.opened.prompt_length == len(prompt)
    assert (second.deltas[0].offset, second.token_ids) == (0, answer)
    assert second.finished.usage.prompt_tokens == len(prompt)
    assert second.finished.speculation.passes == first.finished.speculation.passes
    resumed = await hear(await gateway.resume(session_id, 4))
    assert resumed.token_ids == answer[4:]


async def test_a_chat_turn_is_the_messages_the_client_sent(make_gateway, verifier, hear, small):
    gateway = await make_gateway(verifier)
    messages = (("user", "Ring"),)
    first = await hear(await gateway.generate(replace(ASK, prompt=None, messages=messages)))
    messages = (*messages, ("assistant", "other words"), ("user", "Again"))
    request = replace(ASK, prompt=None, messages=messages, session_id=first.opened.session_id)
    second = await hear(await gateway.generate(request))
    assert list(verifier.requests[1].token_ids) == small.chat(messages)
    assert second.token_ids == first.token_ids


async def test_a_busy_conversation_refuses_a_turn_and_goes_on(make_gateway, verifier, hear, answer):
    first, second = await make_gateway(verifier), await make_gateway(verifier)
    stream, session_id, stop = await started(first, verifier, 4)
    for gateway in (first, second):
        with pytest.raises(AlreadyRunning):
            await gateway.generate(replace(ASK, session_id=session_id))
    stop.go.set()
    assert (await read_until(stream, len(answer)))[0] == answer


async def test_a_conversation_whose_client_left_takes_the_next_turn(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier, detach_grace_s=0.0)
    stream, session_id, stop = await started(gateway, verifier, 4)
    generation = gateway.running(session_id)
    await stream.aclose()
    await generation.wait()
    stop.go.set()
    heard = await hear(await gateway.generate(replace(ASK, session_id=session_id)))
    assert heard.token_ids == answer
    assert tuple(verifier.requests[1].token_ids[4:8]) == answer[:4]


async def test_who_still_reads_the_last_turn_is_told_that_it_is_over(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier, detach_grace_s=0.0)
    stream, session_id, stop = await started(gateway, verifier, 4)
    generation = gateway.running(session_id)
    await stream.aclose()
    await generation.wait()
    stop.go.set()
    old = await gateway.resume(session_id, 4)
    await hear(await gateway.generate(replace(ASK, session_id=session_id)))
    with pytest.raises(FailedPrecondition):
        await hear(old)


async def test_a_repeated_turn_request_joins_it(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier)
    first = await hear(await gateway.generate(ASK))
    request = replace(ASK, session_id=first.opened.session_id, request_id=secrets.token_hex(8))
    heard = [await hear(await gateway.generate(request)) for _ in range(2)]
    assert heard[0].token_ids == heard[1].token_ids == answer
    assert len(verifier.requests) == 2


async def test_a_turn_of_an_unknown_session_is_not_found(make_gateway, verifier):
    gateway = await make_gateway(verifier)
    with pytest.raises(NotFound):
        await gateway.generate(replace(ASK, session_id="nobody"))
