"""Real gRPC servers that describe themselves and do nothing else, for the router's tests."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import grpc

from forerun.core.types import Exactness, ModelInfo, TokenizerFiles
from forerun.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from forerun.wire.convert import model_to_proto, tokenizer_to_proto
from forerun.wire.server import Server
from forerun.wire.tls import Tls
from gateway.router import DRAFTER_SERVICE, VERIFIER_SERVICE, Router

SOON = 20.0  # far beyond what anything here takes; only a failing test waits for it

MODEL = ModelInfo(
    name="bell",
    revision="r1",
    vocab_fingerprint="ab" * 32,
    vocab_size=400,
    max_context=64,
    numerics="r1/f32/cpu",
    exact=Exactness.BITWISE,
    end_token_ids=(0,),
)


def model(**changes: Any) -> ModelInfo:
    return dataclasses.replace(MODEL, **changes)


async def until(router: Router, condition: Callable[[], bool]) -> None:
    assert await router._wait(lambda: condition() or None, SOON), "it never became so"


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    def __init__(self, served: ModelInfo, files: TokenizerFiles | None = None) -> None:
        self.served = served
        self.files = files
        self.num_fetches = 0
        self.may_end = asyncio.Event()

    async def GetModel(self, request: Any, context: Any) -> verifier_pb2.VerifierServiceGetModelResponse:
        return verifier_pb2.VerifierServiceGetModelResponse(model=model_to_proto(self.served))

    async def GetTokenizer(self, request: Any, context: Any) -> verifier_pb2.GetTokenizerResponse:
        self.num_fetches += 1
        if self.files is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "loading")
        return tokenizer_to_proto(self.files)

    async def Decode(self, request: Any, context: Any) -> Any:
        """`started`, then `settled` once the test lets it."""
        yield verifier_pb2.DecodeResponse(started=verifier_pb2.Started(epoch=1))
        await self.may_end.wait()
        yield verifier_pb2.DecodeResponse(settled=[verifier_pb2.Settled(base=7)])


class FakeDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    def __init__(self, served: ModelInfo, source: str) -> None:
        self.served = served
        self.source = source

    async def GetModel(self, request: Any, context: Any) -> drafter_pb2.DrafterServiceGetModelResponse:
        return drafter_pb2.DrafterServiceGetModelResponse(
            model=model_to_proto(self.served), source=self.source, drafter="d"
        )


class Fleet:
    """Starts and stops servers by address; everything still running is stopped at the end."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}

    async def verifier(
        self,
        served: ModelInfo = MODEL,
        *,
        at: str = "127.0.0.1:0",
        files: TokenizerFiles | None = None,
        tls: Tls | None = None,
        serving: bool = True,
    ) -> tuple[str, FakeVerifier]:
        servicer = FakeVerifier(served, files)
        server = Server(at, tls or Tls(), insecure=False, services=(VERIFIER_SERVICE,))
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server.grpc)
        return await self._start(server, at, serving=serving), servicer

    async def drafter(self, served: ModelInfo = MODEL, source: str = "model:small") -> str:
        at = "127.0.0.1:0"
        server = Server(at, Tls(), insecure=False, services=(DRAFTER_SERVICE,))
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(FakeDrafter(served, source), server.grpc)
        return await self._start(server, at)

    async def _start(self, server: Server, at: str, *, serving: bool = True) -> str:
        address = f"{at.rpartition(':')[0]}:{await server.start()}"
        await server.set_serving(serving)
        self.servers[address] = server
        return address

    async def set_serving(self, address: str, serving: bool) -> None:
        await self.servers[address].set_serving(serving)

    async def stop(self, address: str) -> None:
        await self.servers.pop(address).grpc.stop(None)

    async def close(self) -> None:
        for address in list(self.servers):
            await self.stop(address)
