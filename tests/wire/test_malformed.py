"""Bytes that are no message are the caller's fault, in every method, and nobody else's business."""

from __future__ import annotations

import logging

import grpc
import pytest
import structlog
from google.protobuf import message_factory

from forerun.errors import InvalidRequest
from forerun.v1 import (
    drafter_pb2,
    drafter_pb2_grpc,
    gateway_pb2,
    gateway_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from forerun.wire.server import Server
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls

SERVICES = {
    "DrafterService": (drafter_pb2, drafter_pb2_grpc),
    "GatewayService": (gateway_pb2, gateway_pb2_grpc),
    "VerifierService": (verifier_pb2, verifier_pb2_grpc),
}
METHODS = [
    method for name, (pb, _) in SERVICES.items() for method in pb.DESCRIPTOR.services_by_name[name].methods
]
BROKEN = b"\xff\xff\xff"


def handler_of(method, handled: list):
    """A handler that notes what it is given, and answers once for each request."""
    reply = message_factory.GetMessageClass(method.output_type)

    async def stream_stream(self, request_iterator, context):
        async for request in request_iterator:
            handled.append(request)
            yield reply()

    async def unary_stream(self, request, context):
        handled.append(request)
        yield reply()

    async def unary_unary(self, request, context):
        handled.append(request)
        return reply()

    if method.client_streaming:
        return stream_stream
    return unary_stream if method.server_streaming else unary_unary


@pytest.fixture
async def handled(dial):
    """What the handlers of all services were given; `.channel` leads to them."""

    class Handled(list):
        channel = None

    handled = Handled()
    server = Server("127.0.0.1:0", Tls(), insecure=False, services=[])
    for name, (pb, rpc) in SERVICES.items():
        methods = pb.DESCRIPTOR.services_by_name[name].methods
        servicer = type(name, (), {method.name: handler_of(method, handled) for method in methods})()
        getattr(rpc, f"add_{name}Servicer_to_server")(servicer, server.grpc)
    handled.channel = dial(f"127.0.0.1:{await server.start()}")
    yield handled
    await server.drain_and_stop(0)


def call(channel, method, *raw: bytes):
    """The raw call: bytes out, bytes back."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    if method.client_streaming:
        return channel.stream_stream(path)(iter(raw))
    return (channel.unary_stream if method.server_streaming else channel.unary_unary)(path)(*raw)


async def replies(call) -> list[bytes]:
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        return [await call]
    return [reply async for reply in call]


@pytest.mark.parametrize("method", METHODS, ids=[method.full_name for method in METHODS])
async def test_malformed_bytes_are_an_invalid_argument_and_no_traceback(handled, caplog, method):
    with structlog.testing.capture_logs() as logs, caplog.at_level(logging.DEBUG):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await replies(call(handled.channel, method, BROKEN))
        assert [record for record in caplog.records if record.exc_info] == []
    assert logs == []
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = from_rpc_error(caught.value)
    assert (type(error), error.reason) == (InvalidRequest, "MALFORMED_MESSAGE")
    assert method.input_type.full_name in error.message
    assert handled == []
    # The connection and the method are as good as before.
    assert await replies(call(handled.channel, method, b"")) == [b""]
    assert len(handled) == 1


async def test_a_stream_is_heard_up_to_the_message_that_is_broken(handled):
    method = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].methods_by_name["Verify"]
    good = verifier_pb2.VerifyRequest(attach=verifier_pb2.Attach(drafter="d")).SerializeToString()
    answer = call(handled.channel, method, good, good, BROKEN, good)
    assert await answer.read() == b""
    assert await answer.read() == b""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer.read()
    assert from_rpc_error(caught.value).reason == "MALFORMED_MESSAGE"
    assert [request.attach.drafter for request in handled] == ["d", "d"]


async def test_text_that_is_not_utf8_is_malformed(handled):
    method = gateway_pb2.DESCRIPTOR.services_by_name["GatewayService"].methods_by_name["Generate"]
    raw = gateway_pb2.GenerateRequest(prompt="Ring").SerializeToString().replace(b"Ring", b"R\xff\xffg")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await replies(call(handled.channel, method, raw))
    assert "UTF-8" in from_rpc_error(caught.value).message
