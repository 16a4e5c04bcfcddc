from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from forerun.core.noise import noise_key
from forerun.core.types import Acceptance, Exactness, FinishReason, Mode, Sampling
from forerun.errors import (
    FailedPrecondition,
    InternalFault,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionRefused,
    Unavailable,
)
from gateway.events import Delta, Opened
from gateway.request import GenerationRequest
from gateway.store.session import SessionStatus

ASK = GenerationRequest(prompt="Ring the bell", max_tokens=200)


async def test_answer_is_what_the_verifier_settled(make_gateway, verifier, hear, answer, small):
    gateway = await make_gateway(verifier)
    heard = await hear(await gateway.generate(ASK))
    assert heard.token_ids == answer
    assert heard.text == "The bell will soon ring: naïve 東京 😀, waking the city."
    assert heard.finished.finish_reason is FinishReason.STOP
    assert heard.finished.usage.completion_tokens == len(answer)
    assert heard.finished.usage.prompt_tokens == heard.opened.prompt_length == len(small.encode(ASK.prompt))
    assert heard.finished.exact is Exactness.BITWISE


async def test_what_is_emitted_is_already_in_redis(make_gateway, verifier, store):
    gateway = await make_gateway(verifier)
    emitted = ()
    async for event in await gateway.generate(ASK):
        if isinstance(event, Opened):
            session_id = event.session_id
        if isinstance(event, Delta):
            emitted += event.token_ids
        held = (await store.read(session_id)).answer_ids
        assert held[: len(emitted)] == emitted


async def test_decode_request_says_all_a_verifier_must_know(make_gateway, verifier, hear, small):
    gateway = await make_gateway(verifier)
    sampling = Sampling(temperature=0.5, top_k=7, top_p=0.5, min_p=0.25)
    request = replace(ASK, sampling=sampling, seed=11, max_tokens=9, ignore_end_tokens=True)
    heard = await hear(await gateway.generate(request))
    (sent,) = verifier.requests
    prompt = small.encode(ASK.prompt)
    assert list(sent.token_ids) == prompt
    assert (sent.prompt_length, sent.max_tokens, sent.ignore_end_tokens) == (len(prompt), 9, True)
    assert (sent.sampling.top_k, sent.sampling.top_p, sent.mode) == (7, 0.5, Mode.COUPLED)
    assert sent.noise_key == noise_key(11, prompt)
    assert (heard.opened.mode, heard.opened.seed) == (Mode.COUPLED, 11)
    assert heard.finished.finish_reason is FinishReason.LENGTH
    assert len(heard.token_ids) == 9


@pytest.mark.parametrize(
    ("temperature", "seed", "acceptance", "mode"),
    [
        (0.0, None, Acceptance.AUTO, Mode.GREEDY),
        (0.0, 5, Acceptance.COUPLED, Mode.GREEDY),
        (1.0, 5, Acceptance.AUTO, Mode.COUPLED),
        (1.0, None, Acceptance.COUPLED, Mode.COUPLED),
        (1.0, None, Acceptance.AUTO, Mode.REJECTION),
        (1.0, None, Acceptance.REJECTION, Mode.REJECTION),
    ],
)
async def test_mode_follows_from_temperature_seed_and_acceptance(
    make_gateway, verifier, hear, temperature, seed, acceptance, mode
):
    gateway = await make_gateway(verifier)
    request = replace(ASK, sampling=Sampling(temperature=temperature), seed=seed, acceptance=acceptance)
    opened = (await hear(await gateway.generate(request))).opened
    assert opened.mode is mode
    assert (opened.seed is None) == (mode is not Mode.COUPLED)
    if seed is not None and mode is Mode.COUPLED:
        assert opened.seed == seed


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("stop", ["soon", "ng: na", "東", "京 😀", "city"])
async def test_answer_ends_before_a_stop_string_however_it_is_cut(
    make_gateway, verifier, hear, answer, small, store, chunk, stop
):
    verifier.chunk = chunk
    gateway = await make_gateway(verifier)
    heard = await hear(await gateway.generate(replace(ASK, stop=("never", stop))))
    whole = small.decode(answer)
    assert heard.text == whole[: whole.index(stop)]
    assert heard.finished.finish_reason is FinishReason.STOP
    # Usage counts what was committed: the fewest tokens that hold the text.
    session = await store.read(heard.opened.session_id)
    assert session.answer_ids == heard.token_ids
    assert heard.finished.usage.completion_tokens == len(heard.token_ids)
    assert small.decode(heard.token_ids).startswith(heard.text)
    assert not small.decode(heard.token_ids[:-1]).startswith(heard.text)
    await verifier.idle.wait()  # the Decode was cancelled


async def test_held_back_tokens_come_when_they_turn_out_to_be_no_stop_string(
    make_gateway, verifier, hear, answer, small
):
    verifier.chunk = 1
    gateway = await make_gateway(verifier)
    heard = await hear(await gateway.generate(replace(ASK, stop=("soon rung", "city!"))))
    assert heard.token_ids == answer
    assert heard.text == small.decode(answer)


async def test_a_limit_before_the_stop_string_wins_and_after_it_loses(make_gateway, verifier, hear, small):
    verifier.chunk = 100
    gateway = await make_gateway(verifier)
    before = len(small.encode("The bell will soon"))
    heard = await hear(await gateway.generate(replace(ASK, stop=("ring",), max_tokens=before)))
    assert heard.finished.finish_reason is FinishReason.LENGTH
    assert heard.text == "The bell will soon"
    heard = await hear(await gateway.generate(replace(ASK, stop=("bell",), max_tokens=before)))
    assert heard.finished.finish_reason is FinishReason.STOP
    assert heard.text == "The "


async def test_a_lost_verifier_is_replaced_without_a_trace(
    make_gateway, make_verifier, hear, answer, fault, store
):
    first, second = await make_verifier(), await make_verifier()
    # Whichever is asked first fails once in mid-answer; a single one is asked again.
    for verifier in (first, second):
        verifier.stop_at(5, fault)
    gateway = await make_gateway(first, second, stall_s=1.0 if fault.__name__ == "stall" else 100.0)
    heard = await hear(await gateway.generate(ASK))
    assert heard.token_ids == answer
    assert heard.finished.exact is Exactness.BITWISE
    requests = sorted([*first.requests, *second.requests], key=lambda r: r.epoch)
    assert [r.epoch for r in requests] == list(range(1, len(requests) + 1))
    assert len(requests) >= 2
    for request in requests[1:]:
        assert tuple(request.token_ids[request.prompt_length :]) == answer[:5]
    assert (await store.read(heard.opened.session_id)).epoch == len(requests)


async def test_failover_prefers_equal_numerics(make_gateway, make_verifier, hear, answer):
    equal = [await make_verifier(), await make_verifier()]
    others = [await make_verifier(numerics="gpu-fp16") for _ in range(3)]
    gateway = await make_gateway(*equal, *others)
    for verifier in (*equal, *others):
        verifier.stop_at(3, None)
    stream = await gateway.generate(ASK)
    await asyncio.wait(
        [asyncio.create_task(v.stops[0].reached.wait()) for v in (*equal, *others)],
        return_when="FIRST_COMPLETED",
    )
    (busy,) = [v for v in (*equal, *others) if v.requests]
    for verifier in (*equal, *others):
        verifier.stops[0].go.set()
    kind = equal if busy in equal else others
    busy.answer = ()  # its script breaks
    heard = await hear(stream)
    assert heard.token_ids == answer
    assert heard.finished.exact is Exactness.BITWISE
    assert {v.model.numerics for v in (*equal, *others) if v.requests} == {kind[0].model.numerics}


async def test_failover_to_other_numerics_is_said(make_gateway, make_verifier, hear, answer, faults):
    verifiers = [await make_verifier(), await make_verifier(numerics="gpu-fp16")]
    for verifier in verifiers:
        verifier.stop_at(3, faults["unavailable"])
    gateway = await make_gateway(*verifiers)
    heard = await hear(await gateway.generate(ASK))
    assert heard.token_ids == answer
    assert heard.finished.exact is Exactness.NUMERIC


async def test_other_numerics_before_the_first_token_change_nothing(
    make_gateway, make_verifier, hear, faults
):
    verifiers = [await make_verifier(), await make_verifier(numerics="gpu-fp16")]
    for verifier in verifiers:
        verifier.stop_at(0, faults["unavailable"])
    gateway = await make_gateway(*verifiers)
    assert (await hear(await gateway.generate(ASK))).finished.exact is Exactness.BITWISE


async def test_without_any_verifier_the_client_is_told_and_the_session_stays(
    make_gateway, verifier, hear, answer, store
):
    gateway = await make_gateway(verifier, verifier_s=0.3)
    stop = verifier.stop_at(5)
    stream = await gateway.generate(ASK)
    session_id = (await anext(stream)).session_id
    while (event := await anext(stream)).offset + len(event.token_ids) < 5:
        pass
    await stop.reached.wait()
    await verifier.server.grpc.stop(None)
    with pytest.raises(Unavailable):
        async for _ in stream:
            pass
    session = await store.read(session_id)
    assert session.status is SessionStatus.DETACHED
    assert session.answer_ids == answer[:5]


async def test_a_verifier_too_small_for_the_answer_never_takes_it_over(
    make_gateway, make_verifier, hear, answer, faults, small
):
    room = len(small.encode(ASK.prompt)) + ASK.max_tokens
    narrow, wide = await make_verifier(max_context=room - 1), await make_verifier(max_context=room)
    wide.stop_at(5, faults["unavailable"])
    gateway = await make_gateway(narrow, wide)
    assert (await hear(await gateway.generate(ASK))).token_ids == answer
    assert narrow.requests == []
    assert len(wide.requests) == 2


async def test_a_verifier_that_came_back_with_a_smaller_context_refuses_for_itself_alone(
    make_gateway, make_verifier, hear, answer
):
    verifiers = [await make_verifier(), await make_verifier()]
    gateway = await make_gateway(*verifiers)
    verifiers[0].refusal = InvalidRequest("the context is 8", reason="CONTEXT_EXCEEDED", field="max_tokens")
    for _ in range(3):
        assert (await hear(await gateway.generate(ASK))).token_ids == answer
    assert verifiers[0].requests


async def test_a_fault_that_repeats_ends_in_an_error_and_stays_resumable(
    make_gateway, verifier, hear, answer, store
):
    verifier.refusal = InternalFault("broken weights")
    gateway = await make_gateway(verifier)
    stream = await gateway.generate(ASK)
    session_id = (await anext(stream)).session_id
    with pytest.raises(InternalFault):
        await anext(stream)
    assert len(verifier.requests) == 3
    verifier.refusal = None
    heard = await hear(await gateway.resume(session_id, 0))
    assert heard.token_ids == answer


async def test_a_request_the_verifier_refuses_ends_with_its_reason(make_gateway, verifier, hear, store):
    verifier.refusal = InvalidRequest("no such law", field="sampling")
    gateway = await make_gateway(verifier)
    stream = await gateway.generate(ASK)
    session_id = (await anext(stream)).session_id
    with pytest.raises(InvalidRequest, match="no such law"):
        await anext(stream)
    heard = await hear(await gateway.resume(session_id, 0))
    assert heard.finished.finish_reason is FinishReason.ERROR
    assert len(verifier.requests) == 1


async def test_a_client_that_reads_late_still_hears_why_it_failed(make_gateway, verifier):
    verifier.refusal = InvalidRequest("no such law", field="sampling")
    gateway = await make_gateway(verifier)
    stream = await gateway.generate(ASK)
    (generation,) = gateway._generations.values()
    await generation.wait()
    await anext(stream)
    with pytest.raises(InvalidRequest, match="no such law"):
        await anext(stream)


async def test_a_full_verifier_is_waited_for_and_then_said_to_be_full(make_gateway, verifier):
    verifier.refusal = Overloaded("full", retry_after_s=0.01)
    gateway = await make_gateway(verifier, verifier_s=1.0)
    stream = await gateway.generate(ASK)
    await anext(stream)
    with pytest.raises(Overloaded):
        await anext(stream)
    assert len(verifier.requests) > 1


async def test_an_epoch_that_is_too_low_for_the_verifier_is_raised(make_gateway, verifier, hear, answer):
    gateway = await make_gateway(verifier)
    stop = verifier.stop_at(3)
    stream = await gateway.generate(ASK)
    await stop.reached.wait()
    session_id = verifier.requests[0].session_id
    verifier.epochs[session_id] = 3  # another gateway's Decode, that Redis forgot
    stop.go.set()
    assert (await hear(stream)).token_ids == answer
    assert verifier.requests[-1].epoch == 3


async def test_many_clients_hear_the_same_while_verifiers_fail(
    make_gateway, make_verifier, hear, answer, faults, store
):
    verifiers = [await make_verifier() for _ in range(2)]
    for verifier in verifiers:
        for at, name in (
            (3, "hang_up"),
            (5, "internal"),
            (8, "unavailable"),
            (11, "cancelled"),
            (13, "overloaded"),
        ):
            verifier.stop_at(at, faults[name])
    gateways = [await make_gateway(*verifiers) for _ in range(2)]
    asked = [gateways[i % 2].generate(replace(ASK, stop=("city",) if i % 3 else ())) for i in range(32)]
    heard = await asyncio.gather(*[hear(stream) for stream in await asyncio.gather(*asked)])
    for i, one in enumerate(heard):
        assert one.text == heard[i % 3].text
        assert one.token_ids == heard[i % 3].token_ids == answer[: len(one.token_ids)]
        assert (await store.read(one.opened.session_id)).answer_ids == one.token_ids
    assert len({one.opened.session_id for one in heard}) == 32
    for verifier in verifiers:
        await verifier.idle.wait()


async def test_drafter_is_asked_to_help(make_gateway, verifier, make_drafter, hear, model):
    drafter = await make_drafter()
    gateway = await make_gateway(verifier, drafters=(drafter,))
    stop = verifier.stop_at(4)
    stream = await gateway.generate(ASK)
    asked = await drafter.asked.get()
    stop.go.set()
    heard = await hear(stream)
    assert (asked.session_id, asked.epoch) == (heard.opened.session_id, 1)
    assert (asked.verifier_address, asked.attach_key) == (verifier.address, b"k" * 32)
    assert asked.vocab_fingerprint == model.vocab_fingerprint


async def test_a_lost_drafter_is_replaced_by_another(make_gateway, verifier, make_drafter, hear, answer):
    drafters = (await make_drafter(), await make_drafter())
    gateway = await make_gateway(verifier, drafters=drafters)
    stop = verifier.stop_at(4)
    stream = await gateway.generate(ASK)
    waiting = {asyncio.create_task(d.asked.get()): d for d in drafters}
    done, _ = await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
    lost = waiting[done.pop()]
    (other,) = [d for d in drafters if d is not lost]
    lost.fail.set()
    again = await next(t for t, d in waiting.items() if d is other)
    assert again.epoch == 1
    stop.go.set()
    assert (await hear(stream)).token_ids == answer


async def test_a_drafter_that_does_not_fit_is_not_asked_again(make_gateway, verifier, make_drafter, hear):
    misfit, fitting = await make_drafter(), await make_drafter()
    misfit.error = FailedPrecondition("vocabulary")
    gateway = await make_gateway(verifier, drafters=(misfit, fitting))
    stop = verifier.stop_at(4)
    stream = await gateway.generate(ASK)
    await fitting.asked.get()
    stop.go.set()
    await hear(stream)
    assert misfit.asked.qsize() <= 1


async def test_a_drafter_that_refuses_is_warned_of_once_for_each_reason(
    make_gateway, verifier, make_drafter, hear
):
    drafter = await make_drafter()
    gateway = await make_gateway(verifier, drafters=(drafter,))
    with capture_logs() as logs:
        for reason in ("VERIFIER_NOT_ALLOWED", "VERIFIER_NOT_ALLOWED", "VOCABULARY_MISMATCH"):
            drafter.error = PermissionRefused("not on the list", reason=reason)
            stop = verifier.stop_at(4)
            stream = await gateway.generate(ASK)
            await drafter.asked.get()
            stop.go.set()
            await hear(stream)
    told = [log for log in logs if log["event"] == "drafter does not fit"]
    assert [(log["log_level"], log["drafter"], log["reason"]) for log in told] == [
        ("warning", drafter.address, "VERIFIER_NOT_ALLOWED"),
        ("warning", drafter.address, "VOCABULARY_MISMATCH"),
    ]


async def test_no_draft_asks_no_drafter(make_gateway, verifier, make_drafter, hear, answer):
    drafter = await make_drafter()
    gateway = await make_gateway(verifier, drafters=(drafter,))
    assert (await hear(await gateway.generate(replace(ASK, no_draft=True)))).token_ids == answer
    assert drafter.asked.empty()


async def test_numbers_are_sums_over_the_passes(make_gateway, verifier, hear, answer):
    verifier.chunk = 3
    gateway = await make_gateway(verifier)
    stop = verifier.stop_at(6)
    stream = await gateway.generate(ASK)
    num_heard = 0
    while num_heard < 6:  # a first commit at least
        num_heard += len(getattr(await anext(stream), "token_ids", ()))
    stop.go.set()
    finished = (await hear(stream)).finished
    full, rest = divmod(len(answer), 3)
    passes = full + (rest > 0)
    speculation = finished.speculation
    assert speculation.passes == passes
    assert speculation.num_accepted == len(answer) - passes == speculation.num_drafted
    assert speculation.num_bonus == passes
    assert sum(i * n for i, n in enumerate(speculation.acceptance_histogram)) == speculation.num_accepted
    assert finished.timings.pass_ms == pytest.approx(passes)
    assert finished.timings.wait_ms == pytest.approx(passes * 0.1)
    assert 0 < finished.timings.first_token_ms <= finished.timings.total_ms
    assert finished.timings.commit_ms > 0


async def test_an_unknown_model_is_not_found(make_gateway, verifier):
    gateway = await make_gateway(verifier)
    with pytest.raises(NotFound):
        await gateway.generate(replace(ASK, model="other"))
    assert verifier.requests == []
