"""A real verifier on port 0 with a tiny model, and a drafter that says what a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest

from forerun.core.noise import noise_key
from forerun.core.pacing import Pacing
from forerun.core.types import Mode, Sampling, TokenizerFiles
from forerun.engine.executor import EngineThread
from forerun.engine.interface import Engine, Segment
from forerun.engine.load import load_engine
from forerun.engine.random_model import save_tiny_model
from forerun.errors import ForerunError
from forerun.v1 import sampling_pb2, verifier_pb2, verifier_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.server import Server
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls
from tests.verifier_service.recital import Recital
from verifier_service.scheduler import Scheduler
from verifier_service.servicer import Verifier
from verifier_service.sessions import Sessions

VOCAB = 64
CONTEXT = 512


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder, vocab_size=VOCAB, max_context=CONTEXT, seed=3)
    return folder


@dataclass
class Answer:
    """All that one Decode call said."""

    started: verifier_pb2.Started | None = None
    token_ids: list[int] = field(default_factory=list)
    passes: list[verifier_pb2.Settled] = field(default_factory=list)
    finish_reason: int = 0

    @property
    def origins(self) -> list[int]:
        return [origin for settled in self.passes for origin in settled.origins]


@dataclass
class Service:
    """A running verifier as tests reach it."""

    stub: verifier_pb2_grpc.VerifierServiceStub
    sessions: Sessions
    engine: Engine
    fingerprint: str
    address: str

    def request(
        self,
        prompt: Sequence[int],
        *,
        session_id: str = "s1",
        epoch: int = 1,
        max_tokens: int = 32,
        sampling: Sampling | None = None,
        seed: int | None = None,
        answered: Sequence[int] = (),
        ignore_end_tokens: bool = True,
        no_draft: bool = False,
    ) -> verifier_pb2.DecodeRequest:
        sampling = sampling or Sampling()
        mode = (
            Mode.GREEDY if sampling.temperature == 0 else Mode.COUPLED if seed is not None else Mode.REJECTION
        )
        return verifier_pb2.DecodeRequest(
            session_id=session_id,
            epoch=epoch,
            token_ids=[*prompt, *answered],
            prompt_length=len(prompt),
            sampling=sampling_pb2.Sampling(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                min_p=sampling.min_p,
            ),
            mode=int(mode),
            noise_key=noise_key(seed, prompt) if mode is Mode.COUPLED and seed is not None else b"",
            max_tokens=max_tokens,
            ignore_end_tokens=ignore_end_tokens,
            no_draft=no_draft,
        )

    async def decode(
        self,
        request: verifier_pb2.DecodeRequest,
        on_started: Callable[[verifier_pb2.Started], None] | None = None,
    ) -> Answer:
        """Run one session to its end; checks that what it settles has no gaps."""
        answer = Answer()
        async for response in self.stub.Decode(request):
            if response.HasField("started"):
                answer.started = response.started
                if on_started is not None:
                    on_started(response.started)
                continue
            assert response.settled
            for settled in response.settled:
                assert settled.base == len(request.token_ids) + len(answer.token_ids)
                assert len(settled.origins) == len(settled.token_ids)
                answer.token_ids.extend(settled.token_ids)
                answer.passes.append(settled)
                answer.finish_reason = settled.finish_reason
        return answer

    def attach(
        self, named: str, started: verifier_pb2.Started, **changes: object
    ) -> verifier_pb2.VerifyRequest:
        fields: dict[str, object] = {
            "session_id": named,
            "epoch": started.epoch,
            "attach_key": started.attach_key,
            "drafter": "scripted",
            "source": "scripted",
            "vocab_fingerprint": self.fingerprint,
        }
        return verifier_pb2.VerifyRequest(attach=verifier_pb2.Attach(**{**fields, **changes}))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def serving(
    engine: Engine,
    *,
    max_sessions: int = 16,
    max_queue: int = 4,
    window: int = 32,
    fingerprint: str = "",
    lookup: bool = False,
    rest_s: float = 0.0,
    pacing: Pacing | None = None,
) -> AsyncIterator[Service]:
    """A real server around `engine` on a free port."""
    sessions = Sessions(max_sessions=max_sessions, max_queue=max_queue, window=window)
    pacing, thread = pacing or Pacing(), EngineThread()
    server = Server("127.0.0.1:0", Tls(), insecure=False, services=("forerun.v1.VerifierService",))
    verifier = Verifier(
        engine.model, TokenizerFiles(b"{}", ""), sessions, pacing, capacity=engine.capacity, rest_s=rest_s
    )
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server.grpc)
    port = await server.start()
    verifier.advertised_address = f"127.0.0.1:{port}"
    passes = asyncio.create_task(Scheduler(engine, thread, sessions, pacing, lookup=lookup).run())
    await server.set_serving(True)
    channel = open_channel(f"127.0.0.1:{port}", Tls())
    try:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        yield Service(stub, sessions, engine, engine.model.vocab_fingerprint, f"127.0.0.1:{port}")
    finally:
        if isinstance(engine, Recital):
            engine.run_free()
        await channel.close()
        await server.drain_and_stop(0)
        passes.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await passes
        thread.close()


@pytest.fixture(scope="session")
def tiny_engine(tiny_folder: Path) -> Engine:
    return load_engine(str(tiny_folder), dtype="float32", threads=1, pool_bytes=64 << 20)[0]


@pytest.fixture
async def service(tiny_engine: Engine) -> AsyncIterator[Service]:
    async with serving(tiny_engine) as running:
        yield running


def greedy_text(engine: Engine, prompt: Sequence[int], length: int) -> list[int]:
    """What the target itself says, one token a pass; the lower id on ties."""
    engine.open("oracle", prompt)
    tokens: list[int] = []
    start, fed = 0, list(prompt)
    for _ in range(length):
        logits = engine.forward([Segment("oracle", start, fed, 1)])[0][0]
        start, fed = start + len(fed), [int(np.argmax(logits))]
        tokens += fed
    engine.close("oracle")
    return tokens


async def refusal(call: grpc.aio.UnaryStreamCall) -> ForerunError:
    """The error a stream must end with, restored from its details."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    return from_rpc_error(refused.value)


async def code_of(call: object) -> tuple[grpc.StatusCode, str]:
    """Await a call or drain a stream that must fail; return its status."""
    try:
        if hasattr(call, "read"):
            async for _ in remaining(call):
                pass
        else:
            await call  # type: ignore[misc]
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    pytest.fail("the call did not fail")


async def remaining(call: grpc.aio.StreamStreamCall) -> AsyncIterator[object]:
    """What a stream that was read from still says."""
    while (response := await call.read()) != grpc.aio.EOF:
        yield response


async def tokens_of(call: grpc.aio.StreamStreamCall) -> list[int]:
    """The tokens a Decode that was read from still settles."""
    return [t async for response in remaining(call) for one in response.settled for t in one.token_ids]
