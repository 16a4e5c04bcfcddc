"""What a launcher asks a verifier directly."""

from __future__ import annotations

import grpc

from forerun.core.types import ModelInfo, TokenizerFiles
from forerun.v1 import verifier_pb2, verifier_pb2_grpc
from forerun.wire import convert
from forerun.wire.channel import open_channel
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls

DEADLINE_S = 30.0


async def describe(address: str) -> tuple[ModelInfo, TokenizerFiles]:
    """Return the model that a verifier serves and its tokenizer. Raises the verifier's ForerunError."""
    async with open_channel(address, Tls()) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            model = await stub.GetModel(verifier_pb2.VerifierServiceGetModelRequest(), timeout=DEADLINE_S)
            files = await stub.GetTokenizer(verifier_pb2.GetTokenizerRequest(), timeout=DEADLINE_S)
        except grpc.RpcError as fault:
            raise from_rpc_error(fault) from fault
    return convert.model_from_proto(model.model), convert.tokenizer_from_proto(files)
