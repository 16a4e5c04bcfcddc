"""`python -m drafter_service`: one line when ready, a clean end on a signal, a sentence when it cannot start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forerun.v1 import drafter_pb2, drafter_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.tls import Tls

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.processes


async def launch(*flags: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "drafter_service",
        *flags,
        cwd=ROOT,
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_that_it_is_ready_serves_and_ends_cleanly(number):
    process = await launch("--listen", "127.0.0.1:0", "--metrics-port", "0", FORERUN_MAX_SESSIONS="3")
    async with asyncio.timeout(60):
        ready = json.loads(await process.stdout.readline())
    assert (ready["ready"], ready["service"]) == (True, "drafter")
    async with open_channel(ready["address"], Tls()) as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="forerun.v1.DrafterService")
        )
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        model = await drafter_pb2_grpc.DrafterServiceStub(channel).GetModel(
            drafter_pb2.DrafterServiceGetModelRequest()
        )
    assert (model.source, model.max_sessions) == ("ngram", 3)
    assert ready["address"] in model.drafter
    process.send_signal(number)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert all(json.loads(line)["service"] == "drafter" for line in err.splitlines())


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--source", "nothing"], "ngram, model:SPEC or replay:FILE"),
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--listen", "127.0.0.1"], "host:port"),
        (["--allow-verifiers", "somewhere"], "somewhere"),
        (["--max-sessions", "0"], "--max-sessions 0 cannot be used"),
        (["--tls-cert", "/nowhere.pem"], "/nowhere.pem"),
    ],
)
async def test_what_cannot_be_served_is_a_sentence_and_a_status(flags, word):
    process = await launch("--listen", "127.0.0.1:0", *flags)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert word in err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.parametrize("flag", ["--listen", "--health-port", "--metrics-port"])
async def test_a_taken_port_is_one_line_with_the_flag_that_chooses_another(flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        value = f"127.0.0.1:{port}" if flag == "--listen" else str(port)
        process = await launch("--listen", "127.0.0.1:0", flag, value)
        async with asyncio.timeout(60):
            out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    (line,) = err.decode().splitlines()
    assert line.startswith("forerun: cannot ")
    assert f"127.0.0.1:{port}: Address already in use; " in line
    assert line.endswith(f"choose another with {flag}")
