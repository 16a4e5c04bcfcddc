"""An error raised in one service is the same error in the other; nothing else of a fault gets out."""

from __future__ import annotations

import asyncio
import inspect
import json

import grpc
import pytest
import structlog

from forerun import errors
from forerun.v1 import drafter_pb2
from forerun.wire.channel import MAX_MESSAGE_BYTES
from forerun.wire.status import code_of, from_rpc_error

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind is not errors.ForerunError]


def _raising(error):
    def act(_context):
        raise error

    return act


async def _caught(call) -> errors.ForerunError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_error_arrives_as_itself(start, dial, kind):
    running = await start()
    sent = kind("says why", reason="SOME_REASON", field="a.b", retry_after_s=1.5, metadata={"held": "ab"})
    running.servicer.unary = _raising(sent)
    got = await _caught(
        running.stub(dial(running.address)).GetModel(drafter_pb2.DrafterServiceGetModelRequest())
    )
    assert type(got) is kind
    assert vars(got) == vars(sent)


async def test_an_error_in_a_stream_arrives_after_what_was_sent(start, dial):
    running = await start()
    running.servicer.unary = _raising(errors.Superseded("a higher epoch has it"))
    running.servicer.release.set()
    call = running.stub(dial(running.address)).Assist(drafter_pb2.AssistRequest())
    assert (await call.read()).num_drafted == 1
    got = await _caught(call.read())
    assert type(got) is errors.Superseded
    assert got.retry_after_s is None
    assert got.field == ""


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_unforeseen_fault_is_internal_and_tells_nothing(start, dial, streaming):
    running = await start()
    running.servicer.unary = _raising(RuntimeError("secret path /etc/x"))
    running.servicer.release.set()
    stub = running.stub(dial(running.address))
    with structlog.testing.capture_logs() as logs:
        if streaming:
            call = stub.Assist(drafter_pb2.AssistRequest())
            await call.read()
            got = await _caught(call.read())
        else:
            got = await _caught(stub.GetModel(drafter_pb2.DrafterServiceGetModelRequest()))
    assert type(got) is errors.InternalFault
    assert "secret" not in str(vars(got))
    assert [str(log["exc_info"]) for log in logs] == ["secret path /etc/x"]


async def test_a_request_above_the_limit_is_refused_with_both_sizes(start, dial):
    running = await start()
    async with grpc.aio.insecure_channel(running.address) as unlimited:
        request = drafter_pb2.AssistRequest(attach_key=bytes(MAX_MESSAGE_BYTES + 1))
        got = await _caught(running.stub(unlimited).Assist(request).read())
    assert type(got) is errors.InvalidRequest
    assert got.reason == "MESSAGE_TOO_LARGE"
    assert str(MAX_MESSAGE_BYTES) in got.message
    sent_by_us = await _caught(running.stub(dial(running.address)).Assist(request).read())
    assert sent_by_us.reason == "MESSAGE_TOO_LARGE"


async def test_a_server_that_is_not_there_is_unavailable(dial):
    stub_channel = dial("127.0.0.1:1")
    call = stub_channel.unary_unary("/forerun.v1.DrafterService/GetModel")(b"")
    got = await _caught(call)
    assert type(got) is errors.Unavailable
    assert got.message.startswith("connection refused (")


async def test_a_deadline_is_unavailable_with_its_own_reason(start, dial):
    running = await start()
    call = running.stub(dial(running.address)).Assist(drafter_pb2.AssistRequest(), timeout=0.2)
    await call.read()
    got = await _caught(call.read())
    assert (type(got), got.reason) == (errors.Unavailable, "DEADLINE_EXCEEDED")
    await running.servicer.closed.wait()


async def test_cancelling_a_stream_runs_the_handlers_finally(start, dial):
    running = await start()
    call = running.stub(dial(running.address)).Assist(drafter_pb2.AssistRequest())
    await call.read()
    call.cancel()
    async with asyncio.timeout(10):
        await running.servicer.closed.wait()


def test_a_subclass_has_the_code_of_its_parent():
    class OddPrompt(errors.InvalidRequest):
        pass

    assert code_of(OddPrompt("odd")) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(errors.ForerunError("bare")) is grpc.StatusCode.INTERNAL


def test_details_that_are_no_status_are_ignored():
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.NOT_FOUND,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff not a message")),
        details="no such session",
    )
    got = from_rpc_error(error)
    assert (type(got), got.message) == (errors.NotFound, "no such session")
    assert json.dumps(got.metadata) == "{}"
