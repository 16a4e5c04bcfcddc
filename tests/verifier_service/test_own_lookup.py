"""A verifier that looks up in a session's own text what may come next: fewer passes, the same text."""

from __future__ import annotations

import asyncio

import pytest

from forerun.core.draft_tree import DraftTree
from forerun.core.survival import Survival
from forerun.core.types import Origin, Sampling
from forerun.engine.interface import Engine
from forerun.v1 import verifier_pb2
from tests.verifier_service.conftest import VOCAB, remaining, serving, tokens_of
from tests.verifier_service.recital import Recital
from verifier_service.own_lookup import LONGEST, OwnLookup

VERSE = [3, 1, 4, 1, 5, 9, 2, 6]
PROMPT = [*VERSE, *VERSE[:3]]
TEXT = [*VERSE * 8]
ANSWER = TEXT[len(PROMPT) :]


@pytest.fixture
def recital() -> Recital:
    engine = Recital([*TEXT, *[0] * 40])
    engine.run_free()
    return engine


async def test_text_that_repeats_takes_fewer_passes_than_tokens(recital: Recital) -> None:
    async with serving(recital, lookup=True) as service:
        answer = await service.decode(service.request(PROMPT, max_tokens=len(ANSWER)))
    assert answer.token_ids == ANSWER
    assert answer.origins.count(Origin.DRAFTED) > len(ANSWER) // 2
    assert len(answer.passes) < len(ANSWER) // 2
    assert {getattr(one, "pass").source for one in answer.passes} <= {"lookup", ""}


def test_nothing_is_drafted_behind_an_end_token() -> None:
    tree = DraftTree([*VERSE, *VERSE, 3, 1], merge=True)
    lookup = OwnLookup(tree, Survival(), 32, frozenset({5, 63}))
    lookup.draft(8)
    assert [node.token_id for node in tree.plan(16)] == [4, 1, 5]
    tree.settle([4, 1, 5])
    lookup.draft(8)
    assert [node.token_id for node in tree.plan(16)] == [9, 2, 6, 3, 1, 4, 1, 5]


async def test_a_session_that_wants_no_drafts_gets_none(recital: Recital) -> None:
    async with serving(recital, lookup=True) as service:
        answer = await service.decode(service.request(PROMPT, max_tokens=len(ANSWER), no_draft=True))
    assert answer.token_ids == ANSWER
    assert set(answer.origins) == {Origin.PLAIN}


async def test_text_that_only_looks_repeated_is_the_same_and_soon_left_alone(tiny_engine: Engine) -> None:
    """Seeded sampling at a high temperature: what is looked up is almost never drawn."""
    prompt = [*VERSE, *VERSE]
    sampling = Sampling(temperature=4.0)
    async with serving(tiny_engine, lookup=True) as service:
        ask = service.request(prompt, max_tokens=200, sampling=sampling, seed=5)
        drafted = await service.decode(ask)
        ask.no_draft, ask.session_id = True, "s2"
        plain = await service.decode(ask)
    assert drafted.token_ids == plain.token_ids
    assert max(drafted.token_ids) < VOCAB
    planned = [len(getattr(one, "pass").plan_token_ids) for one in drafted.passes]
    assert sum(planned) < len(planned) / 4


@pytest.mark.parametrize("seed", [None, 3], ids=["rejection", "coupled"])
async def test_sampled_text_is_drafted_too(tiny_engine: Engine, seed: int | None) -> None:
    sampling = Sampling(temperature=0.05)
    async with serving(tiny_engine, lookup=True) as service:
        ask = service.request([*VERSE] * 3, max_tokens=120, sampling=sampling, seed=seed)
        answer = await service.decode(ask)
    assert len(answer.token_ids) == 120
    assert Origin.DRAFTED in answer.origins


async def test_a_drafter_that_only_repeats_the_look_up_is_told_to_stop_and_then_all_at_once() -> None:
    text = VERSE * 80
    recital = Recital([*text, *[0] * 40])
    async with serving(recital, lookup=True) as service:
        call = service.stub.Decode(service.request(PROMPT, max_tokens=len(text) - len(PROMPT)))
        verify = service.stub.Verify()
        await verify.write(service.attach("s1", (await call.read()).started))
        await asyncio.to_thread(recital.entered.acquire)
        await verify.read()
        session, windows = service.sessions.running["s1"], []
        for number in range(1, 40):
            # The pass under way checks what look-up found; this says the same.
            draft = verifier_pb2.Draft(
                base=session.base, parent=0, first_id=number, token_ids=[text[session.base]]
            )
            await verify.write(verifier_pb2.VerifyRequest(draft=draft))
            while session.tree.seen_id(1) < number:
                service.sessions.heard.clear()
                await service.sessions.heard.wait()
            recital.let_pass()
            stop = (await verify.read()).verdict
            windows.append(stop.window)
            if windows[-1] == 0:
                break
            await asyncio.to_thread(recital.entered.acquire)
        recital.run_free()
        further = [response.verdict async for response in remaining(verify)]
        await tokens_of(call)
    assert windows[-1] == 0
    told = stop.base + len(stop.token_ids)
    assert further[0].base == told
    assert [t for verdict in further for t in verdict.token_ids] == text[told:]
    assert len(further[0].token_ids) > LONGEST + 1  # what several passes settled
