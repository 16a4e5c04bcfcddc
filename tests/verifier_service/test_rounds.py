"""Worked rounds: what one pass settles when drafts agree all the way, part of it, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from forerun.core.types import FinishReason, Origin
from forerun.v1 import verifier_pb2
from tests.verifier_service.conftest import Service, remaining, serving, tokens_of
from tests.verifier_service.recital import Recital

WORDS = [
    "the",
    "old",
    "bell",
    "will",
    "ring",
    "again",
    ",",
    "waking",
    "the",
    "city",
    "tonight",
    "at",
    "last",
    "and",
    "then",
    "all",
    "is",
    "still",
]
IDS = {word: i + 1 for i, word in enumerate(dict.fromkeys([*WORDS, "soon", "sun", "over"]))}
TEXT = [IDS[word] for word in WORDS]


async def one_round(
    prompt_length: int, draft: str
) -> tuple[verifier_pb2.Settled, verifier_pb2.Verdict, Recital]:
    """Settle one token plainly while `draft` arrives for what follows it; return the pass that checks the draft."""
    recital = Recital([*TEXT, *[0] * 20])
    async with serving(recital) as service:
        decode = service.stub.Decode(service.request(TEXT[: prompt_length - 1], max_tokens=12))
        started = (await decode.read()).started
        await asyncio.to_thread(recital.entered.acquire)
        verify = service.stub.Verify()
        await verify.write(service.attach("s1", started))
        snapshot = (await verify.read()).snapshot
        assert len(snapshot.token_ids) == prompt_length - 1
        # The draft's first token is what the pass under way will settle, so that the rest waits below the head.
        chain = [TEXT[prompt_length - 1], *(IDS[word] for word in draft.split())]
        message = verifier_pb2.Draft(base=len(snapshot.token_ids), parent=0, first_id=1, token_ids=chain)
        await verify.write(verifier_pb2.VerifyRequest(draft=message))
        await arrived(service, len(chain))
        recital.let_pass()
        (first,) = (await decode.read()).settled
        assert list(first.origins) == [Origin.DRAFTED]  # the waiting child, tested with a plan of length 0
        await verify.read()
        recital.let_pass()
        (settled,), verdict = (await decode.read()).settled, (await verify.read()).verdict
        decode.cancel()
        recital.run_free()
        return settled, verdict, recital


async def arrived(service: Service, num_nodes: int) -> None:
    while service.sessions.running["s1"].tree.num_nodes < num_nodes:
        service.sessions.heard.clear()
        await service.sessions.heard.wait()


async def test_a_draft_that_parts_after_two_tokens_settles_three() -> None:
    settled, verdict, _ = await one_round(2, "bell will soon ring")
    assert list(settled.token_ids) == [IDS["bell"], IDS["will"], IDS["ring"]]
    assert list(settled.origins) == [Origin.DRAFTED, Origin.DRAFTED, Origin.CORRECTION]
    assert getattr(settled, "pass").num_tested == 3
    assert (verdict.num_drafted, verdict.num_accepted, verdict.held, verdict.head_node) == (3, 2, 0, 0)


async def test_a_draft_that_agrees_all_the_way_settles_one_more() -> None:
    settled, verdict, _ = await one_round(5, "again , waking the")
    assert [WORDS[TEXT.index(t)] for t in settled.token_ids] == ["again", ",", "waking", "the", "city"]
    assert list(settled.origins) == [Origin.DRAFTED] * 4 + [Origin.BONUS]
    assert (verdict.num_drafted, verdict.num_accepted) == (4, 4)


async def test_a_first_mismatch_settles_exactly_one() -> None:
    settled, verdict, _ = await one_round(3, "sun over the city")
    assert list(settled.token_ids) == [IDS["will"]]
    assert list(settled.origins) == [Origin.CORRECTION]
    assert (verdict.num_drafted, verdict.num_accepted, verdict.held) == (1, 0, 0)


async def test_a_draft_for_text_settled_meanwhile_is_walked_over_and_its_rest_checked() -> None:
    recital = Recital([*TEXT, *[0] * 20])
    async with serving(recital) as service:
        decode = service.stub.Decode(service.request(TEXT[:2], max_tokens=8))
        started = (await decode.read()).started
        verify = service.stub.Verify()
        await verify.write(service.attach("s1", started))
        await verify.read()
        recital.let_pass(2)  # "bell will" are settled before the draft comes
        settled: list[int] = []
        while len(settled) < 2:
            settled += [one.token_ids[0] for one in (await decode.read()).settled]
        assert settled == TEXT[2:4]
        late = verifier_pb2.Draft(base=2, parent=0, first_id=1, token_ids=TEXT[2:7])
        await verify.write(verifier_pb2.VerifyRequest(draft=late))
        await arrived(service, 3)
        recital.run_free()
        rest: list[verifier_pb2.Settled] = []
        async for response in remaining(decode):
            rest += response.settled
        tokens = [t for s in rest for t in s.token_ids]
        assert tokens == TEXT[4:10]
        assert sum(getattr(s, "pass").num_salvaged for s in rest) == 3
        assert rest[-1].finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize("repeats", [2, 5])
async def test_a_doubled_draft_changes_nothing(repeats: int) -> None:
    recital = Recital([*TEXT, *[0] * 20])
    async with serving(recital) as service:
        decode = service.stub.Decode(service.request(TEXT[:2], max_tokens=4))
        started = (await decode.read()).started
        await asyncio.to_thread(recital.entered.acquire)
        verify = service.stub.Verify()
        await verify.write(service.attach("s1", started))
        await verify.read()
        draft = verifier_pb2.Draft(base=2, parent=0, first_id=1, token_ids=TEXT[2:6])
        for _ in range(repeats):
            await verify.write(verifier_pb2.VerifyRequest(draft=draft))
        await arrived(service, 4)
        assert service.sessions.running["s1"].tree.num_nodes == 4
        recital.run_free()
        tokens = await tokens_of(decode)
        assert tokens == TEXT[2:6]
