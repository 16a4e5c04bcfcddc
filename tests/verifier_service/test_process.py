"""`python -m verifier_service`: one line when ready, a clean end on a signal, a sentence when it cannot start."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path

import pytest

from forerun.v1 import verifier_pb2, verifier_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.tls import Tls

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.processes


async def launch(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "verifier_service",
        *flags,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_that_it_is_ready_serves_and_ends_cleanly(
    tiny_folder: Path, number: signal.Signals
) -> None:
    process = await launch(
        "--model", str(tiny_folder), "--listen", "127.0.0.1:0", "--name", "tiny", "--kv-pool-mib", "64"
    )
    async with asyncio.timeout(120):
        ready = json.loads(await process.stdout.readline())
        assert (ready["ready"], ready["service"]) == (True, "verifier")
        channel = open_channel(ready["address"], Tls())
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        model = (await stub.GetModel(verifier_pb2.VerifierServiceGetModelRequest())).model
        tokenizer = await stub.GetTokenizer(verifier_pb2.GetTokenizerRequest())
        await channel.close()
        process.send_signal(number)
        assert await process.wait() == 0
    assert model.name == "tiny"
    assert model.vocab_fingerprint == tokenizer.vocab_fingerprint
    assert json.loads(tokenizer.tokenizer_json)["model"]["type"] == "WordLevel"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--listen", "0.0.0.0:0"), "--insecure"),
        (("--listen", "0.0.0.0:0", "--insecure"), "--advertise"),
        (("--listen", "nonsense"), "nonsense"),
        (("--dtype", "int3"), "int3"),
        (("--max-sessions", "0"), "--max-sessions 0 cannot be used"),
        (("--tls-cert", "/nowhere.pem", "--model", "/nowhere/at/all"), "/nowhere.pem"),
    ],
)
async def test_settings_that_cannot_be_served_cost_one_sentence(flags: tuple[str, ...], words: str) -> None:
    process = await launch(*flags)
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode == 2
    assert words in err.decode()
    assert "Traceback" not in err.decode()
    assert out == b""


async def test_a_taken_port_is_one_line_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = await launch("--model", "/nowhere/at/all", "--listen", address)
        async with asyncio.timeout(120):
            out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert err.decode() == (
        f"forerun: cannot listen on {address}: Address already in use; stop what listens there, or choose another "
        "with --listen\n"
    )
