"""Who may draft, and what a bad drafter costs: its own stream and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from forerun.v1 import verifier_pb2
from tests.verifier_service.conftest import Service, code_of, remaining, serving, tokens_of
from tests.verifier_service.recital import Recital

TEXT = [i % 60 + 1 for i in range(200)]
PROMPT = TEXT[:4]


@pytest.fixture
async def held() -> AsyncIterator[tuple[Service, Recital, verifier_pb2.Started, grpc.aio.Call]]:
    """A session that stands still in its first pass until the recital runs free."""
    recital = Recital(TEXT)
    async with serving(recital) as service:
        decode = service.stub.Decode(service.request(PROMPT, max_tokens=20))
        started = (await decode.read()).started
        await asyncio.to_thread(recital.entered.acquire)
        yield service, recital, started, decode
        recital.run_free()


async def finishes(recital: Recital, decode: grpc.aio.Call) -> None:
    recital.run_free()
    tokens = await tokens_of(decode)
    assert tokens == TEXT[4:24]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"attach_key": b"x" * 32}, grpc.StatusCode.PERMISSION_DENIED, "wrong attach key"),
        ({"attach_key": b""}, grpc.StatusCode.PERMISSION_DENIED, "wrong attach key"),
        ({"epoch": 7}, grpc.StatusCode.FAILED_PRECONDITION, "epoch 1, not 7"),
        ({"session_id": "other"}, grpc.StatusCode.NOT_FOUND, "no session other"),
        ({"vocab_fingerprint": "a" * 64}, grpc.StatusCode.FAILED_PRECONDITION, "a" * 64),
        ({"drafter": ""}, grpc.StatusCode.INVALID_ARGUMENT, "stable name"),
    ],
)
async def test_an_attach_that_is_wrong_is_refused_and_says_why(held, changes, code, words) -> None:
    service, recital, started, decode = held
    verify = service.stub.Verify()
    await verify.write(service.attach("s1", started, **changes))
    refused, details = await code_of(verify.read())
    assert refused is code
    assert words in details
    await finishes(recital, decode)


async def test_another_vocabulary_is_refused_with_both_fingerprints(held) -> None:
    service, _, started, _ = held
    verify = service.stub.Verify()
    await verify.write(service.attach("s1", started, vocab_fingerprint="b" * 64))
    _, details = await code_of(verify.read())
    assert "b" * 64 in details
    assert service.fingerprint in details


@pytest.mark.parametrize(
    "draft",
    [
        verifier_pb2.Draft(base=99, first_id=1, token_ids=[1]),
        verifier_pb2.Draft(base=4, first_id=0, token_ids=[1]),
        verifier_pb2.Draft(base=4, parent=5, first_id=2, token_ids=[1]),
        verifier_pb2.Draft(base=4, first_id=1, token_ids=[64]),
        verifier_pb2.Draft(base=4, first_id=1, token_ids=[2**32 - 1]),
        verifier_pb2.Draft(
            base=4, first_id=1, token_ids=[1, 2], laws=[verifier_pb2.Law(token_ids=[1], probs=[1.0])]
        ),
    ],
)
async def test_a_malformed_draft_ends_its_stream_and_nothing_else(held, draft) -> None:
    service, recital, started, decode = held
    verify = service.stub.Verify()
    await verify.write(service.attach("s1", started))
    await verify.read()
    await verify.write(verifier_pb2.VerifyRequest(draft=draft))
    code, _ = await code_of(verify.read())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert service.sessions.running["s1"].streams == {}
    await finishes(recital, decode)


async def test_a_stream_must_begin_with_attach_and_attach_once(held) -> None:
    service, _, started, _ = held
    first = service.stub.Verify()
    await first.write(verifier_pb2.VerifyRequest(draft=verifier_pb2.Draft(base=4, first_id=1, token_ids=[1])))
    assert (await code_of(first.read()))[0] is grpc.StatusCode.INVALID_ARGUMENT
    second = service.stub.Verify()
    await second.write(service.attach("s1", started))
    await second.read()
    await second.write(service.attach("s1", started))
    assert (await code_of(second.read()))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_attach_of_the_same_drafter_replaces_its_stream(held) -> None:
    service, recital, started, decode = held
    old, new = service.stub.Verify(), service.stub.Verify()
    await old.write(service.attach("s1", started))
    await old.read()
    await old.write(
        verifier_pb2.VerifyRequest(draft=verifier_pb2.Draft(base=4, first_id=1, token_ids=[1, 2, 3]))
    )
    await new.write(service.attach("s1", started))
    assert (await new.read()).snapshot.stream == 2
    assert (await old.read()) == grpc.aio.EOF
    session = service.sessions.running["s1"]
    assert [s.number for s in session.streams.values()] == [2]
    assert session.tree.num_nodes == 0
    await finishes(recital, decode)


async def test_what_exceeds_the_window_is_dropped(held) -> None:
    service, _, started, _ = held
    verify = service.stub.Verify()
    await verify.write(service.attach("s1", started))
    window = (await verify.read()).snapshot.window
    ids = TEXT[4 : 4 + window + 9]
    await verify.write(
        verifier_pb2.VerifyRequest(draft=verifier_pb2.Draft(base=4, first_id=1, token_ids=ids))
    )
    tree = service.sessions.running["s1"].tree
    while tree.num_nodes == 0:
        service.sessions.heard.clear()
        await service.sessions.heard.wait()
    assert tree.num_nodes == window


async def test_a_drafter_hears_the_end_of_the_session(held) -> None:
    service, recital, started, decode = held
    verify = service.stub.Verify()
    await verify.write(service.attach("s1", started))
    await verify.read()
    await finishes(recital, decode)
    verdicts = []
    async for response in remaining(verify):
        verdicts.append(response.verdict)
    assert [t for v in verdicts for t in v.token_ids] == TEXT[4:24]
    assert [bool(v.finish_reason) for v in verdicts] == [False] * (len(verdicts) - 1) + [True]


async def test_a_drafter_that_does_not_read_gets_merged_verdicts_in_order(held) -> None:
    service, recital, started, decode = held
    stream = None
    verify = service.stub.Verify()
    await verify.write(service.attach("s1", started))
    await verify.read()
    stream = next(iter(service.sessions.running["s1"].streams.values()))
    await finishes(recital, decode)
    merged = [v.verdict async for v in remaining(verify)]
    base = 4
    for verdict in merged:
        assert verdict.base == base
        base += len(verdict.token_ids)
    assert base == 24
    assert stream.detached
