"""Gateways as processes: ready, drained, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress

import httpx
import pytest

from forerun.cli.launch import free_port
from forerun.v1 import gateway_pb2, gateway_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.tls import Tls

pytestmark = pytest.mark.processes

ASK = gateway_pb2.GenerateRequest(prompt="Ring the bell", max_tokens=200)


@pytest.fixture
async def launch(verifier, shared_valkey):
    """Starts `python -m gateway`; returns the process, its ready line and a gRPC stub."""
    processes, channels = [], []

    async def start(*flags):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "--redis-url", shared_valkey.url),
            *("--verifiers", verifier.address, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        processes.append(process)
        ready = json.loads(await process.stdout.readline())
        channel = open_channel(ready["grpc"], Tls())
        channels.append(channel)
        return process, ready, gateway_pb2_grpc.GatewayServiceStub(channel)

    yield start
    for channel in channels:
        await channel.close()
    for process in processes:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()


def tokens(events) -> tuple[int, ...]:
    return tuple(token for event in events for token in event.delta.token_ids)


async def test_both_doors_answer_and_sigterm_ends_with_0(launch, answer):
    process, ready, stub = await launch()
    assert (ready["ready"], ready["service"]) == (True, "gateway")
    assert tokens([event async for event in stub.Generate(ASK)]) == answer
    async with httpx.AsyncClient(base_url=f"http://{ready['http']}", timeout=30) as client:
        reply = await client.post("/v1/completions", json={"prompt": "Ring the bell", "temperature": 0})
        assert reply.json()["choices"][0]["text"].startswith("The bell will soon ring")
        assert (await client.get("/healthz")).status_code == 200
        assert "forerun_gateway_tokens_committed_total" in (await client.get("/metrics")).text
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_after_sigkill_another_gateway_loses_and_doubles_nothing(launch, verifier, answer):
    first, _, stub = await launch("--lease-s", "0.5")
    _, _, other = await launch("--lease-s", "0.5")
    stop = verifier.stop_at(8)
    call = stub.Generate(ASK)
    session_id = (await call.read()).opened.session_id
    heard = []
    while len(tokens(heard)) < 4:
        heard.append(await call.read())
    await stop.reached.wait()
    os.kill(first.pid, signal.SIGKILL)
    call.cancel()
    stop.go.set()
    seen = tokens(heard)
    request = gateway_pb2.ResumeRequest(session_id=session_id, offset=len(seen))
    resumed = [event async for event in other.Resume(request)]
    assert seen + tokens(resumed) == answer
    text = "".join(event.delta.text + event.finished.text for event in (*heard, *resumed))
    assert text == "The bell will soon ring: naïve 東京 😀, waking the city."


async def test_sigterm_hands_a_running_session_over(launch, verifier, answer):
    first, _, stub = await launch("--grace-s", "0.1")
    _, _, other = await launch()
    stop = verifier.stop_at(6)
    call = stub.Generate(ASK)
    session_id = (await call.read()).opened.session_id
    await stop.reached.wait()
    first.send_signal(signal.SIGTERM)
    assert await first.wait() == 0
    call.cancel()
    stop.go.set()
    resumed = other.Resume(gateway_pb2.ResumeRequest(session_id=session_id))
    assert tokens([event async for event in resumed]) == answer


async def test_settings_that_cannot_be_served_are_a_sentence(verifier):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "--verifiers", verifier.address, "--grpc", "0.0.0.0:0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert b"--insecure" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("flag", ["--grpc", "--http"])
async def test_a_taken_port_is_one_line_with_the_flag_that_chooses_another(verifier, shared_valkey, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "--verifiers", verifier.address),
            *(
                "--redis-url",
                shared_valkey.url,
                "--grpc",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                flag,
                address,
            ),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    (line,) = [line for line in err.decode().splitlines() if not line.startswith("{")]
    assert line.startswith(f"forerun: cannot listen on {address}: Address already in use; ")
    assert line.endswith(f"choose another with {flag}")


@pytest.fixture
async def launch_without_store(verifier, make_valkey):
    """A gateway over a store that is not there, once it has said so: the process, its store, its HTTP address."""
    store, http = make_valkey(), f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "--redis-url", store.url, "--verifiers", verifier.address),
        *("--http", http, "--grpc", "127.0.0.1:0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    entry = {}
    while "waiting for the session store" not in entry.get("event", ""):
        entry = json.loads(await process.stderr.readline())
    assert entry["store"] == store.url
    assert str(store.port) in entry["error"]
    yield process, store, http
    with suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


async def test_a_gateway_is_ready_only_when_its_store_is(launch_without_store, answer):
    process, store, http = launch_without_store
    async with httpx.AsyncClient(base_url=f"http://{http}", timeout=30) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        store.start()
        ready = json.loads(await process.stdout.readline())
        assert (ready["ready"], ready["http"]) == (True, http)
        assert (await client.get("/readyz")).status_code == 200
    async with open_channel(ready["grpc"], Tls()) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        assert tokens([event async for event in stub.Generate(ASK)]) == answer


async def test_a_gateway_that_waits_for_its_store_can_be_stopped(launch_without_store):
    process, _, _ = launch_without_store
    process.send_signal(signal.SIGTERM)
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"")
