"""Drafters of every kind beside a real verifier process: the text is the plain text, the accounts agree.

This verifier waits for nobody, and a tiny target may outrun any drafter: how many drafts are in time is not
claimed here (`test_acceptance` does, with a verifier that waits).
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from drafter_service.sources.model import ModelSource
from drafter_service.sources.ngram import NgramSource
from drafter_service.sources.replay import Faults, ReplaySource
from drafter_service.sources.source import Ask
from forerun.core.noise import noise_key
from forerun.core.proposer import proposer
from forerun.core.types import Mode, Origin, Sampling
from forerun.engine.executor import EngineThread
from forerun.engine.load import load_engine
from forerun.engine.random_model import save_tiny_model
from forerun.v1 import drafter_pb2, verifier_pb2, verifier_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.convert import sampling_to_proto
from forerun.wire.tls import Tls

ROOT = Path(__file__).parents[2]
NUM_TOKENS = 64
NUM_PLACES = 3  # sessions the verifier runs at once
BLOCKER_TOKENS = 15_000  # never reached: who holds a place is cancelled
PROMPTS = {f"s{n}": [(7 * n + i * i) % 60 for i in range(3 + 11 * n)] for n in range(3)}
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two random models of one vocabulary."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("target", "other")}
    save_tiny_model(made["target"], seed=3, max_context=BLOCKER_TOKENS + 100)
    save_tiny_model(made["other"], seed=4)
    return made


@pytest.fixture(scope="module")
def verifier_address(folders):
    flags = ["--model", folders["target"], "--dtype", "float32", "--threads", "1", "--listen", "127.0.0.1:0"]
    flags += ["--max-sessions", NUM_PLACES, "--kv-pool-mib", 64]
    with subprocess.Popen(
        [sys.executable, "-m", "verifier_service", "--no-lookup", *map(str, flags)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as process:
        yield json.loads(process.stdout.readline())["address"]
        process.terminate()


@pytest.fixture
async def verifier(verifier_address):
    async with open_channel(verifier_address, Tls()) as channel:
        yield verifier_pb2_grpc.VerifierServiceStub(channel)


@pytest.fixture
async def model_source(folders):
    threads = []

    async def make(name):
        threads.append(thread := EngineThread())
        engine, _ = await thread.run(load_engine, str(folders[name]), dtype="float32", threads=1)
        return ModelSource(engine, thread)

    yield make
    for thread in threads:
        thread.close()


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    report: drafter_pb2.AssistResponse | None = None


def request(session_id, prompt, mode, max_tokens):
    return verifier_pb2.DecodeRequest(
        session_id=f"{session_id}-{random.getrandbits(64):x}",
        epoch=1,
        token_ids=prompt,
        prompt_length=len(prompt),
        sampling=sampling_to_proto(Sampling(0.0 if mode is Mode.GREEDY else 1.0)),
        mode=int(mode),
        noise_key=noise_key(5, prompt) if mode is Mode.COUPLED else b"",
        max_tokens=max_tokens,
        ignore_end_tokens=True,
    )


@asynccontextmanager
async def all_places_taken(verifier):
    """While the block runs, sessions of others queue: their drafters attach before their first token."""
    calls = [
        verifier.Decode(request("blocker", [1 + n], Mode.GREEDY, BLOCKER_TOKENS)) for n in range(NUM_PLACES)
    ]
    for call in calls:
        await call.read()
    yield
    for call in calls:
        call.cancel()


async def decode(verifier, name, mode, drafter=None, attached=None) -> Answer:
    """One answer to its end, drafted by `drafter` if there is one; `attached` is released once it is."""
    answer, reports = Answer(), None
    asked = request(name, PROMPTS[name], mode, NUM_TOKENS)
    async for event in verifier.Decode(asked):
        if event.HasField("started") and drafter is not None:
            reports = assist(drafter, asked.session_id, event.started)
            await reports.read()
            attached.release()
        for settled in event.settled:
            answer.token_ids.extend(settled.token_ids)
            answer.origins.extend(settled.origins)
    if reports is not None:
        answer.report = [report async for report in _rest(reports)][-1]
    return answer


async def _rest(call):
    while (reply := await call.read()) is not grpc.aio.EOF:
        yield reply


def assist(drafter, session_id, started):
    return drafter.stub.Assist(
        drafter_pb2.AssistRequest(
            session_id=session_id,
            epoch=started.epoch,
            verifier_address=started.advertised_address,
            attach_key=started.attach_key,
            vocab_fingerprint=started.model.vocab_fingerprint,
        )
    )


async def decode_all(verifier, mode, drafter=None) -> list[Answer]:
    """All prompts at once; with a drafter, each attached before the first token."""
    if drafter is None:
        return await asyncio.gather(*(decode(verifier, name, mode) for name in PROMPTS))
    attached = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group, all_places_taken(verifier):
        tasks = [group.create_task(decode(verifier, name, mode, drafter, attached)) for name in PROMPTS]
        for _ in PROMPTS:
            await attached.acquire()
    return [task.result() for task in tasks]


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
@pytest.mark.parametrize("kind", ["ngram", "other", "target", "replay"])
async def test_several_sessions_drafted_at_once_say_their_plain_texts(
    verifier, make_drafter, model_source, kind, mode
):
    plain = await decode_all(verifier, mode)
    match kind:
        case "ngram":
            source = NgramSource()
        case "replay":
            texts = [[*PROMPTS[name], *one.token_ids] for name, one in zip(PROMPTS, plain, strict=True)]
            source = ReplaySource(texts, Faults(error_rate=0.2, delay_ms=5, seed=1))
        case _:
            source = await model_source(kind)
    drafted = await decode_all(verifier, mode, await make_drafter(source))
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    for one in drafted:
        assert one.report.finish_reason
        assert one.report.num_restarts == 0
        assert one.origins.count(Origin.DRAFTED) == one.report.num_accepted
        if kind == "target":
            assert one.report.num_tested == one.report.num_accepted


async def test_a_drafter_with_the_targets_own_law_is_never_rejected(verifier, make_drafter, model_source):
    drafter = await make_drafter(await model_source("target"))
    answers = await decode_all(verifier, Mode.REJECTION, drafter)
    assert all(len(one.token_ids) == NUM_TOKENS for one in answers)
    assert all(one.report.num_tested == one.report.num_accepted for one in answers)


async def test_a_wrong_attach_key_is_the_verifiers_answer(verifier, make_drafter):
    drafter = await make_drafter(NgramSource())
    asked = request("wrong-key", [1], Mode.GREEDY, BLOCKER_TOKENS)
    call = verifier.Decode(asked)
    started = (await call.read()).started
    started.attach_key = b"x" * 32
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await assist(drafter, asked.session_id, started).read()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    call.cancel()


async def test_after_any_history_a_real_models_draft_is_that_of_a_fresh_prefill(folders, model_source):
    rng = random.Random(11)
    used, fresh = await model_source("target"), await model_source("target")
    greedy = proposer(Mode.GREEDY, Sampling(), b"", bytes(32))
    texts = {key: [rng.randrange(60) for _ in range(rng.randint(1, 40))] for key in "abc"}
    for step in range(30):
        asks = [
            Ask(key, tuple(text), len(text), 1, greedy, 0)
            for key, text in texts.items()
            if rng.random() < 0.7
        ]
        drawn = await used.draw(asks)
        for ask, answer in zip(asks, drawn, strict=True):
            again = Ask(f"{ask.key}{step}", ask.token_ids, ask.num_settled, 1, greedy, 0)
            assert await fresh.draw([again]) == [answer]
            await fresh.forget(again.key)
            texts[ask.key].extend(answer.token_ids)
        key = rng.choice("abc")
        match rng.randrange(3):
            case 0:
                texts[key] = [*texts[key][: rng.randint(1, len(texts[key]))], rng.randrange(60)]
            case 1:
                texts[key].extend(rng.randrange(60) for _ in range(rng.randint(1, 5)))
