"""An assisted session: attach, snapshot, drafts ahead, verdicts, and every way it can end."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

from drafter_service.sources.model import ModelSource
from drafter_service.sources.ngram import NgramSource
from drafter_service.sources.replay import Faults, ReplaySource
from drafter_service.sources.source import Drawn
from forerun import errors
from forerun.core.types import FinishReason, Mode, Verdict
from forerun.engine.executor import EngineThread
from forerun.v1 import drafter_pb2
from forerun.wire.status import from_rpc_error
from forerun.wire.telemetry import inject

TEXT = [1, 2, 3, *range(10, 60)]


@pytest.fixture
def replay():
    """Says TEXT, without a fault."""
    return ReplaySource([TEXT], Faults())


@pytest.fixture
async def hash_source(make_engine):
    thread = EngineThread()
    yield ModelSource(make_engine(), thread)
    thread.close()


def verdict(base, *token_ids, head=0, seen=0, held=0, window=8, length=4, finish=FinishReason.NONE):
    return Verdict(base, token_ids, len(token_ids), 1, head, seen, held, length, window, finish)


async def read(call):
    async with asyncio.timeout(20):
        return await call.read()


async def status_of(call) -> errors.ForerunError:
    """The error the call ends with, whatever it said before."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return from_rpc_error(caught.value)


async def gone(drafter):
    """Wait until nothing of any session is left."""
    async with asyncio.timeout(20):
        while True:
            reply = await drafter.stub.GetModel(drafter_pb2.DrafterServiceGetModelRequest())
            if reply.num_sessions == 0 and not len(drafter.channels):
                return


async def test_attach_comes_first_and_names_drafter_source_and_key(make_verifier, make_drafter, replay):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier, epoch=7)
    attach = (await verifier.attached()).attach
    assert (attach.session_id, attach.epoch, attach.attach_key) == ("s1", 7, b"k" * 32)
    assert (attach.drafter, attach.source) == ("drafter-under-test", "replay")
    assert attach.vocab_fingerprint == "ab" * 32  # a look-up fits the target's vocabulary, whatever it is
    assert not attach.ships_laws
    call.cancel()


async def test_drafts_run_ahead_to_the_window_and_go_on_with_each_verdict(
    make_verifier, make_drafter, make_snapshot, replay
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot())
    first, second = await stream.hear(), await stream.hear()
    assert (first.base, first.parent, first.first_id, first.token_ids) == (3, 0, 1, (10, 11, 12, 13))
    assert (second.base, second.parent, second.first_id, second.token_ids) == (3, 4, 5, (14, 15, 16, 17))
    assert stream.drafts.empty()
    stream.say(verdict(3, 10, 11, 12, 13, head=4, seen=8, held=4))
    third = await stream.hear()
    assert (third.base, third.parent, third.token_ids) == (7, 8, (18, 19, 20, 21))
    stream.say(verdict(7, 99, seen=12))
    fourth = await stream.hear()
    assert (fourth.base, fourth.parent, fourth.token_ids) == (8, 0, (15, 16, 17, 18))
    call.cancel()


async def test_counts_arrive_and_the_last_names_the_reason(
    make_verifier, make_drafter, make_snapshot, replay
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot(window=4))
    assert (await read(call)).finish_reason == FinishReason.NONE  # attached
    await stream.hear()
    stream.say(verdict(3, 10, 11, head=2, seen=4, held=1))  # less than was sent
    stream.say(verdict(5, 12, finish=FinishReason.STOP))
    while not (last := await read(call)).finish_reason:
        pass
    assert last.finish_reason == FinishReason.STOP
    assert (last.num_tested, last.num_accepted, last.num_restarts) == (3, 2, 1)
    assert last.num_messages >= 1
    assert last.num_drafted == 4 * last.num_messages
    assert await read(call) is grpc.aio.EOF
    await gone(drafter)


async def test_when_less_is_held_than_sent_the_branch_begins_anew(
    make_verifier, make_drafter, make_snapshot, replay
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot(window=4))
    await stream.hear()
    stream.say(verdict(3, 10, head=1, seen=4, held=1))
    again = await stream.hear()
    assert (again.base, again.parent, again.first_id, again.token_ids) == (4, 0, 5, (11, 12, 13, 14))
    call.cancel()


async def test_a_window_of_zero_stops_the_drafter_until_it_grows(
    make_verifier, make_drafter, make_snapshot, hash_source
):
    verifier, drafter = await make_verifier(), await make_drafter(hash_source)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot(window=0))
    assert (await read(call)).num_messages == 0
    stream.say(verdict(3, 5, window=0))
    while (await read(call)).num_tested == 0:  # the verdict has been taken in
        pass
    assert stream.drafts.empty()
    stream.say(verdict(4, 6, window=8))
    assert (await stream.hear()).base == 5
    call.cancel()


async def test_merged_and_late_verdicts_leave_no_gap(make_verifier, make_drafter, make_snapshot, replay):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot())
    await stream.hear(), await stream.hear()
    # Three passes in one verdict; the verifier had seen the first message alone.
    stream.say(verdict(3, 10, 11, 12, 13, 14, 15, seen=4))
    late = await stream.hear()
    # Ids 7 and 8 are still under way and fit the text; the next burst hangs from them.
    assert (late.base, late.parent, late.token_ids) == (9, 8, (18, 19, 20, 21))
    call.cancel()


async def test_model_drafts_in_rejection_mode_carry_laws(
    make_verifier, make_drafter, make_snapshot, hash_source
):
    verifier, drafter = await make_verifier(), await make_drafter(hash_source)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    assert stream.attach.ships_laws
    stream.say(make_snapshot(Mode.REJECTION))
    draft = await stream.hear()
    assert len(draft.token_ids) == len(draft.laws) == 4
    for token_id, law in zip(draft.token_ids, draft.laws, strict=True):
        assert token_id in law.token_ids
        assert abs(law.probs.sum() - 1) < 1e-5
    call.cancel()


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
async def test_a_models_guess_does_not_depend_on_who_else_is_drafted_for(
    make_verifier, make_drafter, make_snapshot, make_engine, hash_source, mode
):
    verifier, other = await make_verifier(), await make_verifier()
    drafter = await make_drafter(hash_source)
    calls = [drafter.assist(v, session=s) for v, s in [(verifier, "a"), (verifier, "b"), (other, "a")]]
    streams = [await verifier.attached(), await verifier.attached(), await other.attached()]
    prompts = [(1, 2, 3), (7,) * 20, (1, 2, 3)]
    for stream, prompt in zip(streams, prompts, strict=True):
        stream.say(make_snapshot(mode, token_ids=prompt))
    drafts = [[await stream.hear(), await stream.hear()] for stream in streams]
    assert [d.token_ids for d in drafts[0]] == [d.token_ids for d in drafts[2]]
    for call in calls:
        call.cancel()
    await gone(drafter)
    assert len(drafter.channels) == 0


async def test_sessions_of_one_verifier_share_a_channel(make_verifier, make_drafter, replay):
    verifier, other = await make_verifier(), await make_verifier()
    drafter = await make_drafter(replay)
    calls = [drafter.assist(v, session=s) for v, s in [(verifier, "a"), (verifier, "b"), (other, "a")]]
    await verifier.attached(), await verifier.attached(), await other.attached()
    assert len(drafter.channels) == 2
    for call in calls:
        call.cancel()
    await gone(drafter)


async def test_cancelling_frees_stream_channel_kv_and_place(
    make_verifier, make_drafter, make_snapshot, make_engine
):
    thread, engine = EngineThread(), make_engine()
    verifier, drafter = await make_verifier(), await make_drafter(ModelSource(engine, thread), max_sessions=1)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot())
    await stream.hear()
    call.cancel()
    async with asyncio.timeout(20):
        await stream.closed.wait()
    await gone(drafter)
    assert len(engine.opened) == 1
    assert engine.kv == {}
    next_one = drafter.assist(verifier, session="s2")
    assert (await verifier.attached()).attach.session_id == "s2"
    next_one.cancel()
    await gone(drafter)
    thread.close()


async def test_a_broken_stream_is_attached_anew_with_the_new_snapshot(
    make_verifier, make_drafter, make_snapshot, replay
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot())
    await stream.hear()
    stream.say(errors.Unavailable("restarting"))
    again = await verifier.attached()
    assert again.attach == stream.attach
    again.say(make_snapshot(token_ids=(1, 2, 3, 10, 11), stream=2))
    draft = await again.hear()
    assert (draft.base, draft.parent, draft.first_id, draft.token_ids) == (5, 0, 1, (12, 13, 14, 15))
    call.cancel()


async def test_a_verifier_that_comes_back_on_its_port_is_attached_again(
    make_verifier, make_drafter, make_snapshot, replay
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    (await verifier.attached()).say(make_snapshot())
    await read(call)
    await verifier.server.drain_and_stop(0)
    back = await make_verifier(int(verifier.address.rpartition(":")[2]))
    again = await back.attached()
    again.say(make_snapshot())
    assert (await again.hear()).token_ids == (10, 11, 12, 13)
    call.cancel()


@pytest.mark.parametrize(
    "answer",
    [
        errors.NotFound("no such session"),
        errors.FailedPrecondition("old epoch", reason="OLD_EPOCH", metadata={"epoch": "9"}),
        errors.Superseded("a higher epoch has it"),
        errors.PermissionRefused("wrong key", reason="WRONG_ATTACH_KEY"),
        errors.InvalidRequest("bad law", reason="BAD_LAW", field="draft.laws"),
    ],
)
@pytest.mark.parametrize("attached", [False, True])
async def test_the_verifiers_answer_ends_the_session_with_the_same_error(
    make_verifier, make_drafter, make_snapshot, replay, answer, attached
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    if attached:
        stream.say(make_snapshot())
        await stream.hear()
    stream.say(answer)
    got = await status_of(call)
    assert type(got) is type(answer)
    assert vars(got) == vars(answer)
    await gone(drafter)
    assert verifier.streams.empty()


async def test_a_verifier_that_cannot_be_reached_is_given_up_as_unavailable(
    make_verifier, make_drafter, replay, monkeypatch
):
    monkeypatch.setattr("drafter_service.assist.FIRST_BACKOFF_S", 0.001)
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    verifier.address = "127.0.0.1:1"
    got = await status_of(drafter.assist(verifier))
    assert (type(got), got.reason) == (errors.Unavailable, "STREAM_LOST")
    assert verifier.address in got.message
    await gone(drafter)


async def test_a_stream_that_keeps_ending_without_a_verdict_is_given_up(
    make_verifier, make_drafter, make_snapshot, replay, monkeypatch
):
    monkeypatch.setattr("drafter_service.assist.FIRST_BACKOFF_S", 0.001)
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    for _ in range(6):
        stream = await verifier.attached()
        stream.say(make_snapshot())
        stream.say(None)
    got = await status_of(call)
    assert (type(got), got.reason) == (errors.Unavailable, "STREAM_LOST")


async def test_a_stream_that_breaks_often_but_brings_verdicts_is_not_given_up(
    make_verifier, make_drafter, make_snapshot, replay, monkeypatch
):
    monkeypatch.setattr("drafter_service.assist.FIRST_BACKOFF_S", 0.001)
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    call = drafter.assist(verifier)
    for _ in range(8):
        stream = await verifier.attached()
        stream.say(make_snapshot())
        stream.say(verdict(3, 10))
        stream.say(errors.Unavailable("restarting"))
    stream = await verifier.attached()
    stream.say(make_snapshot())
    assert (await stream.hear()).base == 3
    call.cancel()


async def test_the_last_verdict_is_heard_although_drafts_meet_a_closed_stream(
    make_verifier, make_drafter, make_snapshot, replay
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    for number in range(30):
        call = drafter.assist(verifier, session=f"s{number}")
        stream = await verifier.attached()
        stream.say(make_snapshot(window=64))
        await stream.hear()
        for base in range(3, 13):
            stream.say(verdict(base, 99, seen=4, window=64, length=1))
        stream.say(verdict(13, 99, finish=FinishReason.STOP))
        stream.say(None)
        async with asyncio.timeout(20):
            last = [report async for report in call][-1]
        assert last.finish_reason == FinishReason.STOP


async def test_another_vocabulary_is_refused_with_both_fingerprints(make_verifier, make_drafter, hash_source):
    verifier, drafter = await make_verifier(), await make_drafter(hash_source)
    got = await status_of(drafter.assist(verifier, vocab_fingerprint="cd" * 32))
    assert (type(got), got.reason) == (errors.FailedPrecondition, "VOCABULARY_MISMATCH")
    assert got.metadata == {"target": "cd" * 32, "drafter": "ab" * 32}
    assert verifier.streams.empty()


async def test_an_address_that_is_not_allowed_is_not_dialled(make_verifier, make_drafter, replay):
    verifier, drafter = await make_verifier(), await make_drafter(replay, allowed="10.0.0.*:7001")
    got = await status_of(drafter.assist(verifier))
    assert (type(got), got.field) == (errors.PermissionRefused, "verifier_address")
    assert verifier.streams.empty()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"session": "no spaces"}, "session_id"),
        ({"session": ""}, "session_id"),
        ({"attach_key": b""}, "attach_key"),
        ({"verifier_address": "x"}, "verifier_address"),
    ],
)
async def test_a_malformed_request_names_its_field(make_verifier, make_drafter, replay, fields, field):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    got = await status_of(drafter.assist(verifier, **fields))
    assert (type(got), got.field) == (errors.InvalidRequest, field)


async def test_beyond_its_capacity_a_drafter_is_overloaded_and_says_when_to_return(
    make_verifier, make_drafter, replay
):
    verifier, drafter = await make_verifier(), await make_drafter(replay, max_sessions=1)
    first = drafter.assist(verifier)
    await verifier.attached()
    got = await status_of(drafter.assist(verifier, session="s2"))
    assert (type(got), got.retry_after_s) == (errors.Overloaded, 1.0)
    first.cancel()


async def test_a_newer_assist_of_the_session_takes_its_place(make_verifier, make_drafter, replay):
    verifier, drafter = await make_verifier(), await make_drafter(replay, max_sessions=1)
    old = drafter.assist(verifier)
    await verifier.attached()
    new = drafter.assist(verifier, epoch=2)
    assert (await verifier.attached()).attach.epoch == 2
    got = await status_of(old)
    assert (type(got), got.reason) == (errors.Superseded, "ASSISTED_AGAIN")
    stale = await status_of(drafter.assist(verifier, epoch=1))
    assert (type(stale), stale.reason) == (errors.FailedPrecondition, "OLD_EPOCH")
    new.cancel()
    await gone(drafter)


async def test_a_fault_of_the_source_ends_the_sessions_it_drew_for_and_no_other(
    make_verifier, make_drafter, make_snapshot, replay, monkeypatch
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    right = replay.draw

    async def draw(asks):
        if any(ask.token_ids[0] == 9 for ask in asks):
            raise RuntimeError("broken model")
        return await right(asks)

    monkeypatch.setattr(replay, "draw", draw)
    broken = drafter.assist(verifier, session="broken")
    (await verifier.attached()).say(make_snapshot(token_ids=(9, 9)))
    got = await status_of(broken)
    assert (type(got), got.reason) == (errors.InternalFault, "DRAFTING_FAILED")
    call = drafter.assist(verifier, session="whole")
    stream = await verifier.attached()
    stream.say(make_snapshot())
    assert (await stream.hear()).token_ids == (10, 11, 12, 13)
    call.cancel()


async def test_a_text_beyond_the_drafters_context_is_left_alone_and_the_session_stays(
    make_verifier, make_drafter, make_snapshot, make_engine
):
    thread = EngineThread()
    verifier = await make_verifier()
    drafter = await make_drafter(ModelSource(make_engine(max_context=5), thread))
    call = drafter.assist(verifier)
    stream = await verifier.attached()
    stream.say(make_snapshot())
    assert len((await stream.hear()).token_ids) == 2
    stream.say(verdict(3, 4, 5, 6, seen=2))
    stream.say(verdict(6, 7, seen=2, finish=FinishReason.LENGTH))
    while not (last := await read(call)).finish_reason:
        pass
    assert (last.num_drafted, last.finish_reason) == (2, FinishReason.LENGTH)
    await gone(drafter)
    thread.close()


async def test_the_trace_of_the_request_reaches_the_verifier(make_verifier, make_drafter, replay):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    provider = TracerProvider()
    with provider.get_tracer("test").start_as_current_span("request") as span:
        call = drafter.assist(verifier, metadata=inject())
    await verifier.attached()
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert trace_id in verifier.metadata[0]["traceparent"]
    call.cancel()
    provider.shutdown()


async def test_get_model_describes_a_model_and_of_a_look_up_only_the_name(make_drafter, hash_source):
    request = drafter_pb2.DrafterServiceGetModelRequest()
    model = await (await make_drafter(hash_source, max_sessions=3)).stub.GetModel(request)
    assert (model.source, model.model.name, model.model.vocab_size) == ("model:hash", "hash", 16)
    assert (model.drafter, model.num_sessions, model.max_sessions) == ("drafter-under-test", 0, 3)
    lookup = await (await make_drafter(NgramSource())).stub.GetModel(request)
    assert (lookup.source, lookup.model.name, lookup.model.vocab_size) == ("ngram", "ngram", 0)


async def test_what_was_drawn_for_a_session_that_left_goes_nowhere(
    make_verifier, make_drafter, make_snapshot, replay, monkeypatch
):
    verifier, drafter = await make_verifier(), await make_drafter(replay)
    drawing, finish = asyncio.Event(), asyncio.Event()

    async def draw(asks):
        drawing.set()
        await finish.wait()
        return [Drawn((1, 2, 3, 4)) for _ in asks]

    monkeypatch.setattr(replay, "draw", draw)
    call = drafter.assist(verifier)
    first = await verifier.attached()
    first.say(make_snapshot())
    await drawing.wait()
    first.say(errors.Unavailable("restarting"))
    second = await verifier.attached()
    finish.set()
    monkeypatch.setattr(replay, "draw", ReplaySource([TEXT], Faults()).draw)
    second.say(make_snapshot(window=4))
    assert (await second.hear()).token_ids == (10, 11, 12, 13)
    assert first.drafts.empty()
    second.say(verdict(3, 10, finish=FinishReason.STOP))
    while not (last := await read(call)).finish_reason:
        pass
    assert (last.num_messages, last.num_drafted) == (1, 4)
