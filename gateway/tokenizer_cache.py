"""Tokenizers by model, fetched from a verifier once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc

from forerun.core.types import ModelInfo
from forerun.errors import FailedPrecondition
from forerun.v1 import verifier_pb2, verifier_pb2_grpc
from forerun.wire.convert import tokenizer_from_proto
from forerun.wire.status import from_rpc_error
from gateway.replica import Replica
from gateway.text import Tokenizer

# Tens of megabytes from a replica that may be busy.
FETCH_DEADLINE_S = 30.0

Key = tuple[str, str, str]


class TokenizerCache:
    """One tokenizer per model name, revision and vocabulary; requests for the same one share a fetch."""

    def __init__(self) -> None:
        self._fetches: dict[Key, asyncio.Task[Tokenizer]] = {}

    def holds(self, model: ModelInfo) -> bool:
        """Whether the model's tokenizer needs no replica: it is here, or being fetched."""
        return _key(model) in self._fetches

    async def get(self, model: ModelInfo, replicas: Sequence[Replica]) -> Tokenizer:
        """The model's tokenizer, from the first of `replicas` unless it is here already.

        `replicas` may be empty only if this `holds` it. Raises what the fetch raised; a failed fetch is not
        remembered.
        """
        key = _key(model)
        fetch = self._fetches.get(key)
        if fetch is None:
            fetch = self._fetches[key] = asyncio.create_task(_fetch(replicas[0], model))
        try:
            # One caller that gives up does not take the fetch from the others.
            return await asyncio.shield(fetch)
        finally:
            failed = fetch.done() and (fetch.cancelled() or fetch.exception() is not None)
            if failed and self._fetches.get(key) is fetch:
                del self._fetches[key]


def _key(model: ModelInfo) -> Key:
    return model.name, model.revision, model.vocab_fingerprint


async def _fetch(replica: Replica, model: ModelInfo) -> Tokenizer:
    with replica.in_use() as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            reply = await stub.GetTokenizer(verifier_pb2.GetTokenizerRequest(), timeout=FETCH_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
    files = tokenizer_from_proto(reply)
    if files.vocab_fingerprint != model.vocab_fingerprint:
        raise FailedPrecondition(
            f"{replica.address} serves the vocabulary {model.vocab_fingerprint} with the tokenizer of "
            f"{files.vocab_fingerprint}",
            reason="VOCABULARY_MISMATCH",
        )
    return await asyncio.to_thread(Tokenizer, files)
