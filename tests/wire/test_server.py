"""A server is unready until it says so, keeps to loopback, and ends without cutting what it can finish."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from forerun.errors import FailedPrecondition, InvalidRequest, Unavailable
from forerun.v1 import drafter_pb2
from forerun.wire.channel import CHANNEL_OPTIONS
from forerun.wire.server import SERVER_OPTIONS, Server
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls

SERVICE = "forerun.v1.DrafterService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def _health(channel, service: str) -> int:
    reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return reply.status


@pytest.mark.parametrize("name", ["", SERVICE])
async def test_health_of_each_service_is_not_serving_until_ready(start, dial, name):
    running = await start()
    channel = dial(running.address)
    assert await _health(channel, name) == NOT_SERVING
    await running.server.set_serving(True)
    assert await _health(channel, name) == SERVING
    await running.server.set_serving(False)
    assert await _health(channel, name) == NOT_SERVING


async def test_health_of_an_unknown_service_is_not_found(start, dial):
    running = await start()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _health(dial(running.address), "forerun.v1.NoService")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_hears_of_readiness_and_of_the_drain(start, dial):
    running = await start()
    watch = health_pb2_grpc.HealthStub(dial(running.address)).Watch(
        health_pb2.HealthCheckRequest(service=SERVICE)
    )
    assert (await watch.read()).status == NOT_SERVING
    await running.server.set_serving(True)
    assert (await watch.read()).status == SERVING
    stopping = asyncio.create_task(running.server.drain_and_stop(60))
    assert (await watch.read()).status == NOT_SERVING
    await stopping  # an open watch does not hold the drain up


async def test_reflection_names_our_service(start, dial):
    running = await start()
    call = reflection_pb2_grpc.ServerReflectionStub(dial(running.address)).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    reply = await call.read()
    assert SERVICE in {service.name for service in reply.list_services_response.service}


async def test_probes_need_no_certificate_and_reach_nothing_else(start, dial):
    running = await start(health_port=0)
    await running.server.set_serving(True)
    channel = dial(f"127.0.0.1:{running.server.health_port}")
    assert await _health(channel, SERVICE) == SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.stub(channel).GetModel(drafter_pb2.DrafterServiceGetModelRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "example.org:0"])
async def test_beyond_loopback_without_tls_is_refused(address):
    with pytest.raises(InvalidRequest) as caught:
        Server(address, Tls(), insecure=False, services=[SERVICE])
    assert (caught.value.reason, caught.value.field) == ("INSECURE_BIND", "listen")


async def test_beyond_loopback_can_be_insisted_on():
    server = Server("0.0.0.0:0", Tls(), insecure=True, services=[SERVICE])
    assert await server.start() > 0
    await server.drain_and_stop(0)


async def test_a_taken_port_is_an_error_not_a_share():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Server(f"127.0.0.1:{port}", Tls(), insecure=False, services=[SERVICE])
        with pytest.raises(FailedPrecondition) as caught:
            await server.start()
        with pytest.raises(FailedPrecondition) as foretold:
            server.check_free()
        await server.drain_and_stop(0)
    assert caught.value.reason == "CANNOT_BIND"
    assert str(caught.value) == str(foretold.value)
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; stop what listens there, or choose another "
        "with --listen"
    )
    server.check_free()


async def test_a_taken_health_port_is_said_to_be_that():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server("127.0.0.1:0", Tls(), insecure=False, services=[SERVICE], health_port=port)
        with pytest.raises(FailedPrecondition, match=rf"127.0.0.1:{port}: .* --health-port$"):
            await server.start()
        await server.drain_and_stop(0)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_of_another_machine_is_one_sentence(host):
    server = Server(f"{host}:7", Tls(), insecure=True, services=[SERVICE], flag="grpc")
    with pytest.raises(FailedPrecondition) as caught:
        await server.start()
    await server.drain_and_stop(0)
    assert str(caught.value).startswith(f"cannot listen on {host}:7: ")
    assert str(caught.value).endswith("; choose another with --grpc")
    assert caught.value.field == "grpc"


async def test_files_that_make_no_certificate_are_not_called_a_taken_port(tmp_path):
    pem = tmp_path / "any.pem"
    pem.write_text("-----BEGIN NOTHING-----\n")
    server = Server("127.0.0.1:0", Tls(pem, pem, pem), insecure=False, services=[SERVICE])
    with pytest.raises(FailedPrecondition, match="--tls-cert, --tls-key and --tls-ca do not make"):
        await server.start()
    await server.drain_and_stop(0)


async def test_two_of_our_servers_do_not_share_a_port(start):
    running = await start()
    second = Server(running.address, Tls(), insecure=False, services=[SERVICE])
    with pytest.raises(FailedPrecondition):
        await second.start()
    await second.drain_and_stop(0)


async def test_a_drain_lets_a_live_stream_finish_and_refuses_new_calls(start, dial):
    running = await start()
    stub = running.stub(dial(running.address))
    call = stub.Assist(drafter_pb2.AssistRequest())
    await call.read()
    assert running.server.live_calls == 1
    stopping = asyncio.create_task(running.server.drain_and_stop(60))
    while await _health(dial(running.address), SERVICE) != NOT_SERVING:
        pass
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetModel(drafter_pb2.DrafterServiceGetModelRequest())
    refused = from_rpc_error(caught.value)
    assert (type(refused), refused.reason) == (Unavailable, "DRAINING")
    assert not stopping.done()
    running.servicer.release.set()
    assert (await call.read()).num_drafted == 2
    assert await call.read() is grpc.aio.EOF
    await stopping
    assert running.server.live_calls == 0


async def test_a_stream_that_outlives_the_grace_is_cut_and_its_handler_closed(start, dial):
    running = await start()
    call = running.stub(dial(running.address)).Assist(drafter_pb2.AssistRequest())
    await call.read()
    await running.server.drain_and_stop(0)
    with pytest.raises(grpc.aio.AioRpcError):
        await call.read()
    async with asyncio.timeout(10):
        await running.servicer.closed.wait()


def test_every_option_is_one_that_grpc_knows():
    library = Path(cygrpc.__file__).read_bytes()
    unknown = [name for name, _ in (*SERVER_OPTIONS, *CHANNEL_OPTIONS) if name.encode() not in library]
    assert unknown == []


def test_servers_permit_the_pings_that_clients_send():
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    assert server["grpc.keepalive_permit_without_calls"] == 1
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]
    assert client["grpc.http2.max_pings_without_data"] == server["grpc.http2.max_pings_without_data"] == 0
