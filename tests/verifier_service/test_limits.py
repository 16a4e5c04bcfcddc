"""A bad or excessive request costs one clear answer; slots and queue places come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest

from forerun.engine.interface import PoolFullError, Segment
from forerun.engine.load import load_engine
from forerun.errors import InvalidRequest
from forerun.v1 import sampling_pb2, verifier_pb2
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

TEXT = [i % 60 + 1 for i in range(400)]
GOOD = [1, 2, 3]
NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("token_ids", {"token_ids": []}),
        ("token_ids", {"token_ids": [1, VOCAB]}),
        ("prompt_length", {"prompt_length": 0}),
        ("prompt_length", {"prompt_length": 4}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": CONTEXT}),
        ("session_id", {"session_id": ""}),
        ("temperature", {"sampling": sampling_pb2.Sampling(temperature=-1), "mode": 3}),
        ("temperature", {"sampling": sampling_pb2.Sampling(temperature=NAN), "mode": 3}),
        ("top_p", {"sampling": sampling_pb2.Sampling(temperature=1, top_p=1.5), "mode": 3}),
        ("min_p", {"sampling": sampling_pb2.Sampling(temperature=1, min_p=-0.5), "mode": 3}),
        ("mode", {"mode": 0}),
        ("mode", {"mode": 9}),
        ("mode", {"mode": 3}),
        ("noise_key", {"mode": 2, "sampling": sampling_pb2.Sampling(temperature=1)}),
        ("noise_key", {"noise_key": b"x" * 32}),
    ],
)
async def test_a_bad_field_is_named_and_nothing_is_admitted(
    service: Service, field: str, change: dict
) -> None:
    request = service.request(GOOD, max_tokens=4)
    for name, value in change.items():
        request.ClearField(name)
        if isinstance(value, list):
            request.token_ids.extend(value)
        elif isinstance(value, sampling_pb2.Sampling):
            request.sampling.CopyFrom(value)
        else:
            setattr(request, name, value)
    error = await refusal(service.stub.Decode(request))
    assert isinstance(error, InvalidRequest)
    assert error.field.removeprefix("sampling.") == field
    assert list(service.sessions) == []


async def test_a_full_queue_refuses_with_a_time_to_come_back_and_frees_places() -> None:
    recital = Recital(TEXT)
    async with serving(recital, max_sessions=2, max_queue=1) as service:
        calls = [
            service.stub.Decode(service.request(TEXT[:3], session_id=f"q{i}", max_tokens=5)) for i in range(3)
        ]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.stub.Decode(service.request(TEXT[:3], session_id="q9", max_tokens=5)).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(refused.value.trailing_metadata() or ())
        assert b"RetryInfo" in trailers["grpc-status-details-bin"]
        recital.run_free()
        for call in calls:
            assert await tokens_of(call) == TEXT[3:8]
        assert list(service.sessions) == []


async def test_a_cancelled_session_is_gone_and_the_next_in_line_runs() -> None:
    recital = Recital(TEXT)
    async with serving(recital, max_sessions=1, max_queue=4) as service:
        first = service.stub.Decode(service.request(TEXT[:3], session_id="a", max_tokens=300))
        await first.read()
        waiting = [
            service.stub.Decode(service.request(TEXT[:3], session_id=f"w{i}", max_tokens=4)) for i in range(3)
        ]
        for call in waiting:
            await call.read()
        waiting[1].cancel()
        first.cancel()
        recital.run_free()
        for index in (0, 2):
            assert await tokens_of(waiting[index]) == TEXT[3:7]
        assert list(service.sessions) == []


async def test_a_higher_epoch_takes_over_and_a_lower_one_is_refused() -> None:
    recital = Recital(TEXT)
    async with serving(recital) as service:
        old = service.stub.Decode(service.request(TEXT[:3], epoch=2, max_tokens=6))
        await old.read()
        for epoch in (1, 2):
            code, details = await code_of(
                service.stub.Decode(service.request(TEXT[:3], epoch=epoch, max_tokens=6))
            )
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "epoch" in details
        new = service.stub.Decode(service.request(TEXT[:3], epoch=3, max_tokens=6))
        assert (await new.read()).started.epoch == 3
        assert (await code_of(old))[0] is grpc.StatusCode.ABORTED
        recital.run_free()
        assert await tokens_of(new) == TEXT[3:9]


class _Broken(Recital):
    """Says NaN for one session and its text for the others."""

    def forward(self, segments: list[Segment]) -> list[np.ndarray]:
        rows = super().forward(segments)
        for segment, logits in zip(segments, rows, strict=True):
            if segment.session_id.startswith("bad") and segment.start > 4:
                logits[:] = np.nan
        return rows


async def test_logits_that_are_not_numbers_end_that_session_and_no_other() -> None:
    broken = _Broken(TEXT)
    broken.run_free()
    async with serving(broken) as service:
        bad, good = await asyncio.gather(
            code_of(service.stub.Decode(service.request(TEXT[:3], session_id="bad", max_tokens=20))),
            service.decode(service.request(TEXT[:3], session_id="good", max_tokens=20)),
        )
        assert bad[0] is grpc.StatusCode.INTERNAL
        assert "not a number" in bad[1]
        assert good.token_ids == TEXT[3:23]


class _Crashing(Recital):
    """Its third pass raises."""

    def forward(self, segments: list[Segment]) -> list[np.ndarray]:
        if len(self.segments) == 2:
            self.segments.append(segments[0])
            raise RuntimeError("the device is on fire")
        return super().forward(segments)


async def test_a_pass_that_raises_ends_its_sessions_and_the_engine_goes_on() -> None:
    crashing = _Crashing(TEXT)
    crashing.run_free()
    async with serving(crashing) as service:
        code, details = await code_of(service.stub.Decode(service.request(TEXT[:3], max_tokens=20)))
        assert code is grpc.StatusCode.INTERNAL
        assert "fire" not in details
        again = await service.decode(service.request(TEXT[:3], session_id="s2", max_tokens=6))
        assert again.token_ids == TEXT[3:9]


async def test_a_session_the_pool_can_never_hold_is_refused_at_once() -> None:
    async with serving(Recital(TEXT, capacity=64)) as service:
        code, details = await code_of(service.stub.Decode(service.request(TEXT[:40], max_tokens=40)))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "64" in details


class _Small(Recital):
    """A pool of so many positions, counted by session."""

    def __init__(self, text: list[int], positions: int) -> None:
        super().__init__(text, capacity=positions)
        self.kv: dict[str, int] = {}
        self.refusals = 0

    def open(self, session_id: str, token_ids: list[int]) -> int:
        self.kv[session_id] = 0
        return 0

    def close(self, session_id: str) -> None:
        self.kv.pop(session_id, None)

    def forward(self, segments: list[Segment]) -> list[np.ndarray]:
        after = self.kv | {s.session_id: s.start + len(s.token_ids) for s in segments}
        if sum(after.values()) > self.capacity:
            self.refusals += 1
            raise PoolFullError(segments[-1].session_id)
        self.kv = after
        return super().forward(segments)


async def test_a_pool_smaller_than_the_running_sessions_sets_back_and_all_finish() -> None:
    small = _Small(TEXT, positions=100)
    small.run_free()
    async with serving(small) as service:
        answers = await asyncio.gather(
            *(service.decode(service.request(TEXT[:5], session_id=f"p{i}", max_tokens=60)) for i in range(6))
        )
        assert all(answer.token_ids == TEXT[5:65] for answer in answers)
        assert small.refusals > 0
        await service.decode(service.request(TEXT[:5], session_id="z", max_tokens=2))
        assert set(small.kv) <= {"z#1"}


async def test_a_real_pool_that_forces_set_backs_changes_no_text(tiny_folder: Path) -> None:
    engine = load_engine(
        str(tiny_folder), dtype="float32", threads=1, pool_bytes=512 * 2 * 2 * 2 * 16 * 4 + 4096
    )[0]
    assert engine.capacity < 2 * CONTEXT
    prompt = [7, 8, 9]
    expected = greedy_text(engine, prompt, 300)
    async with serving(engine) as service:
        answers = await asyncio.gather(
            *(service.decode(service.request(prompt, session_id=f"b{i}", max_tokens=300)) for i in range(4))
        )
        assert all(answer.token_ids == expected for answer in answers)


async def test_sessions_opened_and_dropped_leave_nothing(service: Service) -> None:
    for batch in range(10):
        calls = [
            service.stub.Decode(service.request(GOOD, session_id=f"d{batch}-{i}", max_tokens=400))
            for i in range(16)
        ]
        for call in calls:
            await call.read()
        for call in calls:
            call.cancel()
    answer = await service.decode(service.request(GOOD, session_id="last", max_tokens=5))
    assert len(answer.token_ids) == 5
    assert list(service.sessions) == []


async def test_get_model_describes_the_target(service: Service) -> None:
    reply = await service.stub.GetModel(verifier_pb2.VerifierServiceGetModelRequest())
    assert reply.model.vocab_size == VOCAB
    assert reply.model.max_context == CONTEXT
    assert reply.model.vocab_fingerprint == service.fingerprint
