"""Scripted verifiers and drafters behind real gRPC servers, and gateways over them and a real valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest

from forerun import errors
from forerun.core.types import FinishReason, ModelInfo, Origin, PassRecord, Settled, TokenizerFiles
from forerun.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from forerun.wire.convert import model_to_proto, settled_to_proto, tokenizer_to_proto
from forerun.wire.server import Server
from forerun.wire.tls import Tls
from gateway.events import Delta, Finished, Opened
from gateway.patience import Patience
from gateway.router import Router
from gateway.service import Gateway
from gateway.store.store import Store
from gateway.text import Tokenizer

VERIFIER, DRAFTER = "forerun.v1.VerifierService", "forerun.v1.DrafterService"
# So long that a test that waits for it fails by its own timeout.
NEVER_S = 1000.0

Fault = Callable[[Any], Awaitable[None]]


async def unavailable(context: Any) -> None:
    raise errors.Unavailable("scripted")


async def internal(context: Any) -> None:
    raise errors.InternalFault("scripted")


async def overloaded(context: Any) -> None:
    raise errors.Overloaded("scripted", retry_after_s=0.01)


async def cancelled(context: Any) -> None:
    await context.abort(grpc.StatusCode.CANCELLED, "scripted")


async def hang_up(context: Any) -> None:
    """Ends the stream as if all had been said."""


async def stall(context: Any) -> None:
    await asyncio.Event().wait()


FAULTS = {f.__name__: f for f in (unavailable, internal, overloaded, cancelled, hang_up, stall)}


@dataclass
class Stop:
    """A place in the answer where a verifier waits for the test."""

    at: int  # answer tokens
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    fault: Fault | None = None  # done once, instead of going on


class ScriptedVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Settles a known answer, `chunk` tokens a pass, with the epochs, end tokens and limits of a real one."""

    def __init__(self, model: ModelInfo, files: TokenizerFiles) -> None:
        self.model = model
        self.files = files
        self.answer: tuple[int, ...] = ()
        self.chunk = 2
        self.stops: list[Stop] = []
        self.requests: list[verifier_pb2.DecodeRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.num_running = 0
        self.idle = asyncio.Event()
        self.epochs: dict[str, int] = {}
        self.refusal: errors.ForerunError | None = None
        self.address = ""
        self.server: Server | None = None

    def stop_at(self, at: int, fault: Fault | None = None) -> Stop:
        stop = Stop(at, fault=fault)
        self.stops.append(stop)
        return stop

    async def GetModel(self, request, context):
        return verifier_pb2.VerifierServiceGetModelResponse(model=model_to_proto(self.model))

    async def GetTokenizer(self, request, context):
        return tokenizer_to_proto(self.files)

    async def Decode(self, request, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.refusal is not None:
            raise self.refusal
        if request.epoch < self.epochs.get(request.session_id, 0):
            raise errors.FailedPrecondition("old epoch", reason="OLD_EPOCH")
        self.epochs[request.session_id] = request.epoch
        self.num_running += 1
        self.idle.clear()
        try:
            yield verifier_pb2.DecodeResponse(
                started=verifier_pb2.Started(
                    epoch=request.epoch,
                    attach_key=b"k" * 32,
                    advertised_address=self.address,
                    model=model_to_proto(self.model),
                )
            )
            async for settled in self._settle(request, context):
                yield verifier_pb2.DecodeResponse(settled=[settled_to_proto(settled)])
        finally:
            self.num_running -= 1
            if not self.num_running:
                self.idle.set()

    async def _settle(self, request, context):
        done = len(request.token_ids) - request.prompt_length
        while True:
            for stop in [s for s in self.stops if s.at <= done and not s.go.is_set()]:
                stop.reached.set()
                if stop.fault is not None:
                    stop.go.set()
                    await stop.fault(context)
                    return
                await stop.go.wait()
            if self.epochs[request.session_id] != request.epoch:
                raise errors.Superseded("a higher epoch")
            tokens, finish = self._next(request, done)
            origins = (Origin.DRAFTED,) * (len(tokens) - 1) + (Origin.BONUS,)
            yield Settled(
                request.prompt_length + done, tokens, origins[: len(tokens)], finish, self._record(tokens)
            )
            if finish is not FinishReason.NONE:
                return
            done += len(tokens)

    def _next(self, request, done: int) -> tuple[tuple[int, ...], FinishReason]:
        tokens = []
        stops = [s.at for s in self.stops if s.at > done]
        for token in self.answer[done : min([done + self.chunk, *stops])]:
            tokens.append(token)
            if token in self.model.end_token_ids and not request.ignore_end_tokens:
                return tuple(tokens), FinishReason.STOP
            if done + len(tokens) >= request.max_tokens:
                return tuple(tokens), FinishReason.LENGTH
        if not tokens:
            raise RuntimeError("the script is at its end")
        return tuple(tokens), FinishReason.NONE

    def _record(self, tokens) -> PassRecord:
        accepted = len(tokens) - 1
        return PassRecord(
            tokens[:-1], tokens, accepted, accepted, source="script", pass_us=1000, wait_us=100, queue_us=10
        )


class ScriptedDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Notes whom it was asked to help, and helps until told otherwise."""

    def __init__(self, model: ModelInfo) -> None:
        self.model = model
        self.asked: asyncio.Queue[drafter_pb2.AssistRequest] = asyncio.Queue()
        self.metadata: list[dict[str, str]] = []
        self.error: errors.ForerunError | None = None
        self.fail = asyncio.Event()
        self.address = ""

    async def GetModel(self, request, context):
        return drafter_pb2.DrafterServiceGetModelResponse(
            model=model_to_proto(self.model), source="script", drafter="d"
        )

    async def Assist(self, request, context):
        self.metadata.append(dict(context.invocation_metadata()))
        self.asked.put_nowait(request)
        if self.error is not None:
            raise self.error
        yield drafter_pb2.AssistResponse()
        await self.fail.wait()
        raise errors.Unavailable("scripted")


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Puts a servicer behind a real server on a free port."""
    servers = []

    async def start(servicer: Any, add: Callable[..., None], service: str) -> Any:
        server = Server("127.0.0.1:0", Tls(), insecure=False, services=[service])
        add(servicer, server.grpc)
        servicer.address = f"127.0.0.1:{await server.start()}"
        servicer.server = server
        await server.set_serving(True)
        servers.append(server)
        return servicer

    yield start
    for server in servers:
        await server.grpc.stop(None)


@pytest.fixture
def make_verifier(serve, model, small_files, answer):
    async def make(**changes: Any) -> ScriptedVerifier:
        verifier = ScriptedVerifier(replace(model, **changes), small_files)
        verifier.answer = answer
        add = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
        return await serve(verifier, add, VERIFIER)

    return make


@pytest.fixture
async def verifier(make_verifier) -> ScriptedVerifier:
    return await make_verifier()


@pytest.fixture
def make_drafter(serve, model):
    async def make() -> ScriptedDrafter:
        add = drafter_pb2_grpc.add_DrafterServiceServicer_to_server
        return await serve(ScriptedDrafter(model), add, DRAFTER)

    return make


@pytest.fixture
async def make_gateway(shared_valkey) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    made = []

    async def make(
        *verifiers: ScriptedVerifier,
        drafters: tuple[ScriptedDrafter, ...] = (),
        url: str = shared_valkey.url,
        lease_s: float = 5.0,
        **patience: float,
    ) -> Gateway:
        store = Store(url, lease_s=lease_s)
        router = Router(",".join(v.address for v in verifiers), ",".join(d.address for d in drafters), Tls())
        await router.start()
        gateway = Gateway(
            store,
            router,
            patience=Patience(**{"detach_grace_s": NEVER_S, "drafter_retry_s": 0.01} | patience),
        )
        made.append((gateway, router, store))
        # Each replica is to be known before the test begins, so that the choice among them is the router's.
        for _ in range(200):
            served = sum(r.model is not None for pool in pools(router) for r in pool.replicas)
            if served == len(verifiers) + len(drafters):
                break
            await asyncio.wait_for(router._changed.wait(), 10)
        return gateway

    yield make
    for gateway, router, store in made:
        await gateway.drain(0)
        await router.close()
        await store.close()


def pools(router: Router) -> list[Any]:
    return [router._verifiers, router._drafters]


@pytest.fixture(scope="session")
def answer(small: Tokenizer) -> tuple[int, ...]:
    """An answer of several characters a token, several tokens a character, and an end token."""
    return (*small.encode("The bell will soon ring: naïve 東京 😀, waking the city."), 0)


@dataclass
class Heard:
    """What a client heard of an answer."""

    opened: Opened
    token_ids: tuple[int, ...]
    text: str
    finished: Finished
    deltas: list[Delta]


async def hear(stream: Any) -> Heard:
    """Read a stream to its end; offsets must continue one another."""
    opened = await anext(stream)
    deltas = []
    async for event in stream:
        if isinstance(event, Finished):
            break
        if deltas:
            assert event.offset == deltas[-1].offset + len(deltas[-1].token_ids)
        assert len(event.origins) == len(event.token_ids) > 0
        deltas.append(event)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    text = "".join(delta.text for delta in deltas) + event.text
    return Heard(opened, token_ids, text, event, deltas)


@pytest.fixture(name="hear")
def hear_fixture() -> Callable[..., Awaitable[Heard]]:
    return hear


@pytest.fixture(params=sorted(FAULTS))
def fault(request) -> Fault:
    return FAULTS[request.param]


@pytest.fixture
def faults() -> dict[str, Fault]:
    return FAULTS
