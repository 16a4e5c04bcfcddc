"""Any process may be killed in mid-answer: no token is lost, doubled or changed."""

import asyncio
import signal
from dataclasses import replace

import pytest

from forerun.cli.client import Answer
from forerun.core.types import Exactness, Origin, Sampling
from gateway.request import GenerationRequest
from tests.e2e.whole import QUOTE, read_until, resume

pytestmark = [
    pytest.mark.model,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

# Past its end token, so that the kill comes in the middle however fast the machine is.
GREEDY = GenerationRequest(messages=(("user", QUOTE),), max_tokens=160, ignore_end_tokens=True)
SEEDED = replace(GREEDY, sampling=Sampling(temperature=1.0), seed=11)
PLAIN = {}


async def plain(whole, request):
    """The answer without drafting; asked for once."""
    if request not in PLAIN:
        async with whole.client() as client:
            PLAIN[request] = await client.answer(replace(request, no_draft=True))
    return PLAIN[request]


async def kill(service):
    service.child.send(signal.SIGKILL)
    await service.child.wait()


def some(answer) -> bool:
    return len(answer.token_ids) >= 16


async def test_a_killed_drafter_changes_nothing(smollm2):
    expected = await plain(smollm2, GREEDY)
    (drafter,) = smollm2.drafters

    def drafted(answer) -> bool:
        return some(answer) and Origin.DRAFTED in answer.origins

    try:
        async with smollm2.client() as client:
            answer = await read_until(client, GREEDY, drafted, lambda: kill(drafter))
    finally:
        await drafter.start()
    answer.complete()
    assert answer.token_ids == expected.token_ids
    assert answer.text == expected.text


async def test_a_killed_gateways_answer_goes_on_at_another(smollm2):
    expected = await plain(smollm2, GREEDY)
    first = smollm2.gateways[0]
    try:
        async with smollm2.client(0) as lost, smollm2.client(1) as other:
            answer = await read_until(lost, GREEDY, some, lambda: kill(first))
            assert answer.finished is None
            await resume(other, answer)
    finally:
        await first.start()
    assert answer.token_ids == expected.token_ids
    assert answer.text == expected.text


async def test_who_follows_an_answer_does_not_notice_that_its_gateway_died(smollm2):
    expected = await plain(smollm2, GREEDY)
    first, answer, restart = smollm2.gateways[0], Answer(), None
    async with smollm2.client(0) as client:
        async for _ in client.follow(GREEDY, answer):
            if restart is None and some(answer):
                await kill(first)
                restart = asyncio.create_task(first.start())
    assert restart is not None
    await restart
    answer.complete()
    assert answer.token_ids == expected.token_ids
    assert answer.text == expected.text


@pytest.mark.parametrize("request_", [GREEDY, SEEDED], ids=["greedy", "seeded"])
async def test_a_killed_verifiers_answer_completes_on_another(smollm2, request_):
    expected = await plain(smollm2, request_)
    before = {one.name: one.child.cpu_seconds() for one in smollm2.verifiers}
    killed = []

    async def kill_the_busy_one():
        busy = max(smollm2.verifiers, key=lambda one: one.child.cpu_seconds() - before[one.name])
        killed.append(busy)
        await kill(busy)

    try:
        async with smollm2.client() as client:
            answer = await read_until(client, request_, some, kill_the_busy_one)
    finally:
        for one in killed:
            await one.start()
    _, finished = answer.complete()
    assert answer.token_ids == expected.token_ids
    assert answer.text == expected.text
    assert finished.exact is Exactness.BITWISE


async def test_no_emitted_token_is_lost_with_the_store(smollm2):
    expected = await plain(smollm2, GREEDY)
    emitted = []

    async def kill_and_restart():
        await kill(smollm2.store)
        await smollm2.store.start()

    async with smollm2.client() as client:
        answer = await read_until(client, GREEDY, some, kill_and_restart)
        emitted = list(answer.token_ids)
        await resume(client, answer)
        session = await client.session(answer.opened.session_id)
    assert answer.token_ids[: len(emitted)] == emitted
    assert answer.token_ids == expected.token_ids
    assert list(session.token_ids[session.prompt_length :]) == expected.token_ids
