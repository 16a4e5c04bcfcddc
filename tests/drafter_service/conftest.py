"""A model made of a hash, and a verifier that speaks the protocol by hand."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from drafter_service.allow_list import AllowList
from drafter_service.channels import Channels
from drafter_service.loop import DraftingLoop
from drafter_service.servicer import Drafter
from drafter_service.sources.source import Source
from forerun.core.types import Exactness, Mode, ModelInfo, Sampling, Snapshot, Verdict
from forerun.engine.interface import PoolFullError, Segment
from forerun.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from forerun.wire import convert
from forerun.wire.channel import open_channel
from forerun.wire.server import Server
from forerun.wire.tls import Tls

VOCAB = 16
FINGERPRINT = "ab" * 32
PLAIN = Tls()


class HashEngine:
    """A causal model whose logits are a function of the tokens its KV was really fed."""

    def __init__(self, *, capacity: int = 4096, max_context: int = 512, seed: int = 0) -> None:
        self.seed = seed
        self.model = ModelInfo("hash", "", FINGERPRINT, VOCAB, max_context, "hash", Exactness.BITWISE, (0,))
        self.capacity = capacity
        self.passes: list[list[Segment]] = []
        self.kv: dict[str, list[int]] = {}
        self.opened: list[str] = []

    def open(self, session_id: str, token_ids: Sequence[int]) -> int:
        self.opened.append(session_id)
        self.kv[session_id] = []
        return 0

    def forward(self, segments: Sequence[Segment]) -> list[np.ndarray]:
        rows = sum(len(s.token_ids) for s in segments)
        held = {s.session_id: s.start for s in segments}
        if rows + sum(held.get(key, len(kv)) for key, kv in self.kv.items()) > self.capacity:
            raise PoolFullError(segments[-1].session_id)
        self.passes.append(list(segments))
        answers = []
        for segment in segments:
            kv = self.kv[segment.session_id]
            assert segment.start <= len(kv), "rows were skipped"
            del kv[segment.start :]
            kv.extend(segment.token_ids)
            ends = range(len(kv) - segment.num_logits + 1, len(kv) + 1)
            answers.append(
                np.array([self.logits(kv[:end]) for end in ends], dtype=np.float32).reshape(-1, VOCAB)
            )
        return answers

    def close(self, session_id: str) -> None:
        self.kv.pop(session_id, None)

    def logits(self, token_ids: Sequence[int]) -> np.ndarray:
        """The logits after these tokens, from a fresh start."""
        text = np.asarray([self.seed, *token_ids], dtype="<u4").tobytes()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "little")).normal(size=VOCAB).astype(np.float32)


@pytest.fixture
def make_engine():
    return HashEngine


@dataclass
class Stream:
    """One Verify call as the test sees it."""

    attach: verifier_pb2.Attach
    drafts: asyncio.Queue = field(default_factory=asyncio.Queue)
    replies: asyncio.Queue = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, message: Snapshot | Verdict | Exception | None) -> None:
        """Send a snapshot or a verdict, end with an error, or (None) end cleanly."""
        self.replies.put_nowait(message)

    async def hear(self):
        """The next draft."""
        async with asyncio.timeout(20):
            return convert.draft_from_proto(await self.drafts.get())


class ScriptedVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Hands every Verify call to the test."""

    def __init__(self) -> None:
        self.address = ""
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.metadata: list[dict[str, str]] = []

    async def attached(self) -> Stream:
        """The next Verify call, its attach received."""
        async with asyncio.timeout(20):
            return await self.streams.get()

    async def Verify(self, request_iterator, context):
        self.metadata.append(dict(context.invocation_metadata()))
        first = await anext(aiter(request_iterator))
        stream = Stream(first.attach)
        self.streams.put_nowait(stream)
        reading = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while (message := await stream.replies.get()) is not None:
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, Snapshot):
                    yield verifier_pb2.VerifyResponse(snapshot=convert.snapshot_to_proto(message))
                else:
                    yield verifier_pb2.VerifyResponse(verdict=convert.verdict_to_proto(message))
        finally:
            reading.cancel()
            stream.closed.set()

    async def _read(self, requests, stream):
        async for request in requests:
            stream.drafts.put_nowait(request.draft)


@pytest.fixture
async def make_verifier() -> AsyncIterator[Any]:
    """Start a scripted verifier on a port of its own."""
    servers = []

    async def make(port: int = 0) -> ScriptedVerifier:
        verifier = ScriptedVerifier()
        server = Server(f"127.0.0.1:{port}", PLAIN, insecure=False, services=["forerun.v1.VerifierService"])
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server.grpc)
        verifier.address = f"127.0.0.1:{await server.start()}"
        verifier.server = server
        servers.append(server)
        return verifier

    yield make
    for server in servers:
        await server.drain_and_stop(0)


@dataclass
class RunningDrafter:
    """A drafter service on a real port, and a stub of it."""

    servicer: Drafter
    loop: DraftingLoop
    channels: Channels
    stub: Any

    def assist(self, verifier: ScriptedVerifier, *, session: str = "s1", **fields: Any) -> Any:
        request = {
            "session_id": session,
            "epoch": 1,
            "verifier_address": verifier.address,
            "attach_key": b"k" * 32,
            "vocab_fingerprint": FINGERPRINT,
        }
        metadata = fields.pop("metadata", None)
        return self.stub.Assist(drafter_pb2.AssistRequest(**(request | fields)), metadata=metadata)


@pytest.fixture
async def make_drafter() -> AsyncIterator[Any]:
    """Start a drafter service around a source."""
    async with asyncio.TaskGroup() as group:
        running = []

        async def make(source: Source, *, allowed: str = "loopback", max_sessions: int = 8) -> RunningDrafter:
            loop, channels = DraftingLoop(source), Channels(PLAIN)
            servicer = Drafter(
                source,
                loop,
                channels,
                name="drafter-under-test",
                allowed=AllowList.parse(allowed.split(",")),
                max_sessions=max_sessions,
            )
            server = Server("127.0.0.1:0", PLAIN, insecure=False, services=["forerun.v1.DrafterService"])
            drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)
            port = await server.start()
            channel = open_channel(f"127.0.0.1:{port}", PLAIN)
            running.append((server, channel, group.create_task(loop.run())))
            return RunningDrafter(servicer, loop, channels, drafter_pb2_grpc.DrafterServiceStub(channel))

        yield make
        for server, channel, drafting in running:
            await channel.close()
            await server.drain_and_stop(0)
            drafting.cancel()


@pytest.fixture
def make_snapshot():
    def make(mode: Mode = Mode.GREEDY, **fields: Any) -> Snapshot:
        defaults: dict[str, Any] = {
            "stream": 1,
            "epoch": 1,
            "token_ids": (1, 2, 3),
            "mode": mode,
            "sampling": Sampling(0.0 if mode is Mode.GREEDY else 1.0),
            "noise_key": bytes(range(32)) if mode is Mode.COUPLED else b"",
            "window": 8,
            "last_position": 64,
            "end_token_ids": (),
            "next_length": 4,
        }
        return Snapshot(**(defaults | fields))

    return make
