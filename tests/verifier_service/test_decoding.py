"""A session's text is the target's own, drafted or not, alone or among others."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from forerun.core.types import FinishReason, Origin, Sampling
from forerun.engine.interface import Engine
from forerun.v1 import verifier_pb2
from tests.verifier_service.conftest import CONTEXT, VOCAB, Service, greedy_text, serving
from tests.verifier_service.naming import Naming
from tests.verifier_service.patient import Patient

PROMPT = [5, 9, 2, 40, 17, 3]


async def noisy_drafter(
    service: Service,
    session_id: str,
    started: verifier_pb2.Started,
    right: list[int],
    seed: int,
    attached: asyncio.Semaphore,
) -> None:
    """Streams chains of the right text with every fourth token wrong, some late, some twice, until the session ends."""
    rng, said = random.Random(seed), asyncio.Queue[verifier_pb2.VerifyRequest | None]()
    prompt_length = len(PROMPT)

    async def requests():
        yield service.attach(session_id, started, drafter=f"noisy-{seed}")
        while (request := await said.get()) is not None:
            yield request

    next_id, tokens = 1, [*PROMPT, *right]
    async for response in service.stub.Verify(requests()):
        if response.HasField("snapshot"):
            base = len(response.snapshot.token_ids)
            attached.release()
        else:
            base = response.verdict.base + len(response.verdict.token_ids)
            if response.verdict.finish_reason:
                break
        assert base >= prompt_length
        at = max(base - rng.choice([0, 0, 0, 1, 2]), prompt_length) if response.HasField("verdict") else base
        chain = [
            t if rng.random() > 0.25 else rng.randrange(VOCAB) for t in tokens[at : at + rng.randint(1, 6)]
        ]
        draft = verifier_pb2.Draft(base=at, parent=0, first_id=next_id, token_ids=chain)
        next_id += len(chain)
        for _ in range(rng.choice([1, 1, 2])):
            said.put_nowait(verifier_pb2.VerifyRequest(draft=draft))
        if at < base:  # nothing follows about the newest text, for otherwise it would be waited for
            silent = verifier_pb2.Draft(base=base, first_id=next_id)
            said.put_nowait(verifier_pb2.VerifyRequest(draft=silent))
        await asyncio.sleep(0)
    said.put_nowait(None)


async def drafted(
    service: Service,
    request: verifier_pb2.DecodeRequest,
    right: list[int],
    seeds: tuple[int, ...],
    attached: asyncio.Semaphore | None = None,
):
    """The answer with a noisy drafter a seed; each releases `attached` once."""
    drafters: list[asyncio.Task[None]] = []
    here = attached or asyncio.Semaphore(0)

    def attach(started: verifier_pb2.Started) -> None:
        drafters.extend(
            asyncio.create_task(noisy_drafter(service, request.session_id, started, right, seed, here))
            for seed in seeds
        )

    answer = await service.decode(request, attach)
    for ended in await asyncio.gather(*drafters, return_exceptions=True):
        if isinstance(ended, BaseException):  # it may have come after the end
            assert isinstance(ended, grpc.aio.AioRpcError)
            assert ended.code() is grpc.StatusCode.NOT_FOUND
    return answer


async def test_greedy_text_without_a_drafter_is_the_argmax_text(
    service: Service, tiny_engine: Engine
) -> None:
    answer = await service.decode(service.request(PROMPT, max_tokens=40))
    assert answer.token_ids == greedy_text(tiny_engine, PROMPT, 40)
    assert set(answer.origins) == {Origin.PLAIN}
    assert answer.finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize("seeds", [(1,), (2, 3)])
@pytest.mark.parametrize(
    ("sampling", "seed"),
    [(Sampling(), None), (Sampling(1.0), 7), (Sampling(0.8, top_k=20, top_p=0.9), 8)],
)
async def test_text_is_the_same_with_any_drafts(
    tiny_engine: Engine, sampling: Sampling, seed: int | None, seeds: tuple[int, ...]
) -> None:
    async with serving(tiny_engine, max_sessions=1, pacing=Patient()) as service:
        plain = await service.decode(service.request(PROMPT, max_tokens=200, sampling=sampling, seed=seed))
        blocker = service.stub.Decode(service.request(PROMPT, session_id="blocker", max_tokens=500))
        await blocker.read()  # the drafted session queues behind it until its drafters are there
        request = service.request(PROMPT, session_id="s2", max_tokens=200, sampling=sampling, seed=seed)
        attached = asyncio.Semaphore(0)
        answering = asyncio.create_task(drafted(service, request, plain.token_ids, seeds, attached))
        for _ in seeds:
            await attached.acquire()
        blocker.cancel()
        answer = await answering
    assert answer.token_ids == plain.token_ids
    assert Origin.DRAFTED in answer.origins
    assert Origin.CORRECTION in answer.origins


@pytest.mark.parametrize(
    ("sampling", "seed"), [(Sampling(), None), (Sampling(1.0), 7), (Sampling(1.0), None)]
)
async def test_text_is_the_same_whether_the_engine_names_tokens_or_says_logits(
    tiny_engine: Engine, sampling: Sampling, seed: int | None
) -> None:
    told = []
    for engine in (tiny_engine, Naming(tiny_engine)):
        async with serving(engine, pacing=Patient(), lookup=True) as service:
            # A text that repeats, so that look-up drafts from the first pass on.
            request = service.request(PROMPT * 3, max_tokens=200, sampling=sampling, seed=seed)
            told.append(await service.decode(request))
            assert {Origin.DRAFTED, Origin.CORRECTION} & set(told[-1].origins)  # drafts were tested
    if sampling.temperature == 0 or seed is not None:  # else they are two samples, and both came from laws
        assert told[0].token_ids == told[1].token_ids


async def test_many_sessions_of_different_lengths_match_their_single_runs(service: Service) -> None:
    requests = [
        service.request(
            PROMPT[: 1 + i % 6], session_id=f"m{i}", max_tokens=10 + 7 * i, sampling=Sampling(1.0), seed=i
        )
        for i in range(12)
    ]
    together = await asyncio.gather(*(service.decode(request) for request in requests))
    for request, answer in zip(requests, together, strict=True):
        request.session_id += "-alone"
        assert (await service.decode(request)).token_ids == answer.token_ids


async def test_decoding_on_from_any_point_gives_the_same_text(service: Service) -> None:
    whole = await service.decode(service.request(PROMPT, max_tokens=30, sampling=Sampling(1.0), seed=5))
    for done in (1, 13, 29):
        request = service.request(
            PROMPT,
            session_id=f"r{done}",
            max_tokens=30,
            sampling=Sampling(1.0),
            seed=5,
            answered=whole.token_ids[:done],
        )
        assert (await service.decode(request)).token_ids == whole.token_ids[done:]


async def test_a_session_that_was_over_ends_at_once_with_no_token(service: Service) -> None:
    whole = await service.decode(service.request(PROMPT, max_tokens=8))
    again = await service.decode(
        service.request(PROMPT, session_id="s2", max_tokens=8, answered=whole.token_ids)
    )
    assert again.token_ids == []
    assert again.finish_reason == FinishReason.LENGTH


async def test_the_earliest_end_wins_inside_a_drafted_block(service: Service, tiny_engine: Engine) -> None:
    text = greedy_text(tiny_engine, PROMPT, 64)
    for limit in (1, 2, 5):
        request = service.request(PROMPT, session_id=f"e{limit}", max_tokens=limit)
        answer = await drafted(service, request, text, (4,))
        assert answer.token_ids == text[:limit]
        records = [getattr(settled, "pass") for settled in answer.passes]
        assert sum(r.num_accepted for r in records) == answer.origins.count(Origin.DRAFTED)


async def test_an_end_token_ends_the_text_and_is_part_of_it(service: Service, tiny_engine: Engine) -> None:
    end = tiny_engine.model.end_token_ids[0]
    for seed in range(200):
        request = service.request(
            PROMPT,
            session_id=f"x{seed}",
            max_tokens=120,
            sampling=Sampling(1.0),
            seed=seed,
            ignore_end_tokens=False,
        )
        answer = await service.decode(request)
        if answer.finish_reason == FinishReason.STOP:
            assert answer.token_ids.index(end) == len(answer.token_ids) - 1
            return
        assert end not in answer.token_ids
    pytest.fail("no seed reached an end token")


async def test_the_context_is_filled_to_its_last_position_with_long_drafts(
    service: Service, tiny_engine: Engine
) -> None:
    prompt = PROMPT * 80
    room = CONTEXT - len(prompt)
    text = greedy_text(tiny_engine, prompt, room)
    answer = await service.decode(service.request(prompt, max_tokens=room))
    assert answer.token_ids == text
