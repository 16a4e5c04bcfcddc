"""Too much of everything at once: each trouble costs its own session one clear answer, and nobody else a token."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from forerun.core.types import Sampling
from forerun.engine.interface import Engine, Segment
from forerun.engine.load import load_engine
from forerun.errors import InvalidRequest, Overloaded
from forerun.v1 import verifier_pb2
from tests.verifier_service.conftest import (
    CONTEXT,
    VOCAB,
    Service,
    code_of,
    greedy_text,
    refusal,
    serving,
    tokens_of,
)
from tests.verifier_service.recital import Recital
from tests.verifier_service.test_decoding import drafted
from tests.verifier_service.watched import Watched
from verifier_service import metrics

MILLION = 1_000_000
PROMPT = [5, 9, 2, 40, 17, 3]
TEXT = [i % 60 + 1 for i in range(6000)]


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody else go on until it holds. Raises TimeoutError if it does not within a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - on states of several objects, some of another thread
            await asyncio.sleep(0)


# --- prompts ---


async def test_a_prompt_that_arrives_in_heavy_decoding_holds_nobody_up_and_changes_no_text(
    tiny_engine: Engine,
) -> None:
    long = [(7 * i) % (VOCAB - 2) + 1 for i in range(400)]
    prompts = [[i + 1, *PROMPT] for i in range(8)]
    watched = Watched(tiny_engine)
    async with serving(watched) as service:
        running = [
            asyncio.create_task(service.decode(service.request(prompt, session_id=f"s{i}", max_tokens=480)))
            for i, prompt in enumerate(prompts)
        ]
        await until(lambda: len(watched.passes) > 30)
        late = await service.decode(service.request(long, session_id="late", max_tokens=20))
        answers = await asyncio.gather(*running)
    assert late.token_ids == greedy_text(tiny_engine, long, 20)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == greedy_text(tiny_engine, prompt, 480)
    beside = [
        {s.session_id.partition("#")[0] for s in made}
        for made in watched.passes
        if any(s.session_id.startswith("late") for s in made)
    ]
    assert len(beside) >= 19 + len(long) // 64
    still = {name for name in beside[-1] if name.startswith("s")}
    assert still  # somebody decoded all the while, and was in each of these passes
    assert all(still <= names for names in beside)
    assert max(watched.rows_of("late")) <= 64


class _Prompts(Recital):
    """A recital with a long context that notes who had how many rows in each pass."""

    def __init__(self) -> None:
        super().__init__(TEXT, capacity=100_000)
        self.model = replace(self.model, max_context=8192)
        self.passes: list[dict[str, int]] = []

    def forward(self, segments: Sequence[Segment]) -> list[NDArray[np.float32]]:
        self.passes.append({s.session_id.partition("#")[0]: len(s.token_ids) for s in segments})
        return super().forward(segments)


async def test_a_short_prompt_beside_a_long_one_has_its_first_token_in_two_passes() -> None:
    recital = _Prompts()
    async with serving(recital) as service:
        long = service.stub.Decode(service.request(TEXT[:4000], session_id="long", max_tokens=2))
        await long.read()
        await until(lambda: len(recital.passes) == 1)  # the first pass of the long prompt is under way
        short = service.stub.Decode(service.request(TEXT[:100], session_id="short", max_tokens=2))
        await short.read()
        recital.run_free()
        assert await tokens_of(short) == TEXT[100:102]
        assert await tokens_of(long) == TEXT[4000:4002]
    assert "short" not in recital.passes[0]
    assert recital.passes[1]["short"] == 100  # all of it: its first token is drawn in this pass
    assert recital.passes[1]["long"] > 100  # and the long one went on


async def test_beside_decoding_a_short_prompt_has_at_least_half_of_the_prompts_rows() -> None:
    recital = _Prompts()
    async with serving(recital) as service:
        decoding = [
            service.stub.Decode(service.request(TEXT[:3], session_id=f"d{i}", max_tokens=4000))
            for i in range(8)
        ]
        for call in decoding:
            await call.read()
        recital.let_pass(3)
        await until(lambda: len(recital.passes) == 4)
        for name, length in (("long", 4000), ("short", 200)):
            await service.stub.Decode(service.request(TEXT[:length], session_id=name, max_tokens=1)).read()
        recital.run_free()
        await until(lambda: "short" not in service.sessions.running)
        for call in decoding:
            call.cancel()
    both = [made for made in recital.passes if {"long", "short"} <= made.keys()]
    fed = 0
    for made in both:
        assert made["short"] >= min(made["long"] - 1, 200 - fed)
        assert made.keys() >= {f"d{i}" for i in range(8)}
        fed += made["short"]
    assert fed == 200


async def test_forty_prompts_at_once_all_go_on_in_every_pass() -> None:
    recital = _Prompts()
    async with serving(recital, max_sessions=64) as service:
        calls = [
            service.stub.Decode(service.request(TEXT[: 300 + 30 * i], session_id=f"p{i}", max_tokens=3))
            for i in range(40)
        ]
        for call in calls:
            await call.read()
        recital.run_free()
        for i, call in enumerate(calls):
            assert await tokens_of(call) == TEXT[300 + 30 * i :][:3]
    for earlier, later in zip(recital.passes[1:], recital.passes[2:], strict=False):
        unfinished = {name for name, rows in earlier.items() if rows > 1}
        assert unfinished <= later.keys()


# --- size ---


async def test_a_prompt_of_a_million_tokens_is_one_clear_refusal(service: Service) -> None:
    error = await refusal(service.stub.Decode(service.request([1] * MILLION, max_tokens=4)))
    assert isinstance(error, InvalidRequest)
    assert error.reason == "CONTEXT_EXCEEDED"
    assert str(CONTEXT) in error.message
    assert list(service.sessions) == []


async def test_a_request_for_a_million_tokens_is_one_clear_refusal(service: Service) -> None:
    error = await refusal(service.stub.Decode(service.request(PROMPT, max_tokens=MILLION)))
    assert isinstance(error, InvalidRequest)
    assert (error.field, error.reason) == ("max_tokens", "CONTEXT_EXCEEDED")
    assert list(service.sessions) == []


def draft_of(length: int, right: list[int], *, law: int = 0) -> verifier_pb2.VerifyRequest:
    """`right`, then ones, with laws of so many tokens."""
    draft = verifier_pb2.Draft(
        base=len(PROMPT), parent=0, first_id=1, token_ids=[*right, *[1] * length][:length]
    )
    if law:
        draft.laws.extend([verifier_pb2.Law(token_ids=range(law), probs=[1 / law] * law)] * length)
    return verifier_pb2.VerifyRequest(draft=draft)


async def test_a_draft_longer_than_its_window_is_cut_to_it() -> None:
    recital = Recital(TEXT)
    async with serving(recital, window=32) as service:
        decode = service.stub.Decode(service.request(PROMPT, session_id="s1", max_tokens=60))
        started = (await decode.read()).started
        verify = service.stub.Verify()
        await verify.write(service.attach("s1", started))
        await verify.read()
        await verify.write(draft_of(1024, TEXT[len(PROMPT) :]))
        await until(lambda: service.sessions.running["s1"].tree.num_nodes > 0)
        assert service.sessions.running["s1"].tree.num_nodes == 32
        recital.run_free()
        assert await tokens_of(decode) == TEXT[6:66]


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (draft_of(MILLION, []), "BAD_DRAFT"),
        (draft_of(1025, []), "BAD_DRAFT"),
        (draft_of(1, [], law=MILLION), "BAD_LAW"),
    ],
)
async def test_a_draft_of_a_million_tokens_ends_its_stream_and_nothing_else(
    draft: verifier_pb2.VerifyRequest, reason: str
) -> None:
    recital = Recital(TEXT)
    async with serving(recital) as service:
        calls = [
            service.stub.Decode(service.request(PROMPT, session_id=name, max_tokens=60))
            for name in ("s1", "other")
        ]
        started = [(await call.read()).started for call in calls]
        verify = service.stub.Verify()
        await verify.write(service.attach("s1", started[0]))
        await verify.read()
        await verify.write(draft)
        error = await refusal(verify)
        assert isinstance(error, InvalidRequest)
        assert error.reason == reason
        assert not service.sessions.running["s1"].streams
        recital.run_free()
        for call in calls:
            assert await tokens_of(call) == TEXT[6:66]


async def test_a_message_too_large_for_any_request_is_refused_unread(service: Service) -> None:
    request = service.request([VOCAB + 2**30] * (4 * MILLION), max_tokens=4)
    code, details = await code_of(service.stub.Decode(request))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in details
    assert list(service.sessions) == []
    answer = await service.decode(service.request(PROMPT, max_tokens=3))
    assert len(answer.token_ids) == 3


# --- a broken model ---


async def test_a_broken_model_ends_the_sessions_it_breaks_and_no_other(
    tiny_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_folder, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][13] = torch.nan
    save_file(weights, tmp_path / "model.safetensors")
    engine = load_engine(str(tmp_path), dtype="float32", threads=1, pool_bytes=4 << 20)[0]
    # Alone first: which of these texts never meet token 13.
    alone = {}
    async with serving(engine) as service:
        for i in range(1, 9):
            request = service.request([i, 2, 3], session_id=f"a{i}", max_tokens=12)
            alone[i] = await answer_or_code(service, request)
        together = await asyncio.gather(
            *(
                answer_or_code(service, service.request([i, 2, 3], session_id=f"t{i}", max_tokens=12))
                for i in alone
            ),
            answer_or_code(service, service.request([1, 13, 3], session_id="bad", max_tokens=12)),
        )
        assert list(service.sessions) == []
    *texts, bad = together
    assert bad[0] is grpc.StatusCode.INTERNAL
    assert "not a number" in bad[1]
    assert texts == list(alone.values())
    assert sum(isinstance(text, list) for text in texts) > 1


async def answer_or_code(
    service: Service, request: verifier_pb2.DecodeRequest
) -> list[int] | tuple[grpc.StatusCode, str]:
    try:
        return (await service.decode(request)).token_ids
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""


# --- numbers ---


async def test_a_thousand_sessions_opened_and_dropped_at_once_leave_nothing(tiny_folder: Path) -> None:
    engine = load_engine(str(tiny_folder), dtype="float32", threads=1, pool_bytes=4 << 20)[0]
    watched = Watched(engine)
    async with serving(watched, max_sessions=32, max_queue=1000) as service:
        calls = [
            service.stub.Decode(service.request([i % 60 + 1, *PROMPT], session_id=f"d{i}", max_tokens=400))
            for i in range(1000)
        ]
        await asyncio.gather(*(call.read() for call in calls))
        assert len(list(service.sessions)) == 1000
        for call in calls:
            call.cancel()
        await until(lambda: not list(service.sessions) and not service.sessions.ended)
        await until(lambda: not watched.open_ids)
        assert engine.pool.num_held == 0
        assert engine.pool.session_ids == ()
        answer = await service.decode(service.request(PROMPT, max_tokens=5))
        assert len(answer.token_ids) == 5


async def test_beyond_the_bound_of_the_queue_each_is_told_when_to_come_back(tiny_engine: Engine) -> None:
    async with serving(Watched(tiny_engine), max_sessions=2, max_queue=8) as service:
        calls = [
            service.stub.Decode(service.request(PROMPT, session_id=f"q{i}", max_tokens=400))
            for i in range(10)
        ]
        await asyncio.gather(*(call.read() for call in calls))
        refused = await asyncio.gather(
            *(
                refusal(service.stub.Decode(service.request(PROMPT, session_id=f"r{i}", max_tokens=4)))
                for i in range(50)
            )
        )
        assert all(isinstance(error, Overloaded) and error.retry_after_s > 0 for error in refused)
        for call in calls:
            call.cancel()


async def test_a_cancelled_session_has_no_row_from_the_next_pass_on() -> None:
    recital = _Prompts()
    async with serving(recital) as service:
        calls = [
            service.stub.Decode(service.request(TEXT[:3], session_id=f"c{i}", max_tokens=30))
            for i in range(3)
        ]
        for call in calls:
            await call.read()
        recital.let_pass(2)
        await until(lambda: len(recital.passes) == 3)  # the third pass is under way
        calls[1].cancel()
        await until(lambda: "c1" not in service.sessions.running)
        recital.run_free()
        for call in (calls[0], calls[2]):
            assert await tokens_of(call) == TEXT[3:33]
        assert "c1" in recital.passes[2]
        assert all("c1" not in made for made in recital.passes[3:])


class _SlowToOpen(Recital):
    """Sessions are opened one by one, when the test lets them."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self.opening: list[str] = []
        self.may_open = threading.Semaphore(0)
        self.closed: list[str] = []

    def open(self, session_id: str, token_ids: Sequence[int]) -> int:
        self.opening.append(session_id.partition("#")[0])
        self.may_open.acquire()
        return super().open(session_id, token_ids)

    def close(self, session_id: str) -> None:
        self.closed.append(session_id.partition("#")[0])


async def test_sessions_that_are_cancelled_while_others_are_opened_are_closed() -> None:
    recital = _SlowToOpen()
    async with serving(recital) as service:
        calls = {
            name: service.stub.Decode(service.request(TEXT[:3], session_id=name, max_tokens=30))
            for name in ("o1", "o2", "o3")
        }
        await until(lambda: len(list(service.sessions)) == 3)
        for left in (2, 1, 0):  # each is gone before it is open
            await until(lambda left=left: len(recital.opening) == 3 - left)
            calls[recital.opening[-1]].cancel()
            await until(lambda left=left: len(list(service.sessions)) == left)
            recital.may_open.release()
        await until(lambda: len(recital.closed) == 3)
        assert recital.closed == recital.opening


# --- too small a pool ---


@pytest.mark.parametrize("seeds", [(), (1,)])
async def test_a_pool_smaller_than_the_running_sessions_changes_no_text(
    tiny_folder: Path, seeds: tuple[int, ...]
) -> None:
    """Greedy and seeded, with and without a drafter: set back, all finish."""
    context_bytes = CONTEXT * 2 * 2 * 2 * 16 * 4
    roomy, tight = (
        load_engine(str(tiny_folder), dtype="float32", threads=1, pool_bytes=contexts * context_bytes)[0]
        for contexts in (32, 2)
    )

    async def texts(engine: Engine, drafters: tuple[int, ...], right: list[list[int]]) -> list[list[int]]:
        requests = [
            {"max_tokens": 250, "sampling": Sampling(float(i % 2)), "seed": i if i % 2 else None}
            for i in range(6)
        ]
        async with serving(engine) as service:
            answers = await asyncio.gather(
                *(
                    drafted(
                        service,
                        service.request([*PROMPT, i], session_id=f"p{i}", **request),
                        right[i] if right else [],
                        drafters,
                    )
                    for i, request in enumerate(requests)
                )
            )
            await until(lambda: not service.sessions.ended)
        return [answer.token_ids for answer in answers]

    expected = await texts(roomy, (), [])
    watched = Watched(tight)
    before = metrics.SET_BACKS._value.get()
    assert await texts(watched, seeds, expected) == expected
    assert metrics.SET_BACKS._value.get() > before
    assert not watched.open_ids
    assert tight.pool.num_held == 0
