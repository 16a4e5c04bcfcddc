"""`python -m verifier_service`: one line when ready, a clean end on a signal, a sentence when it cannot start."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from forerun.v1 import sampling_pb2, verifier_pb2, verifier_pb2_grpc
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


async def test_it_logs_steps_for_what_they_are_and_ready_only_when_it_is(tiny_folder: Path) -> None:
    process = await launch("--model", str(tiny_folder), "--listen", "127.0.0.1:0", "--kv-pool-mib", "64")
    async with asyncio.timeout(120):
        assert json.loads(await process.stdout.readline())["ready"] is True
        process.terminate()
        _, err = await process.communicate()
    logged = [json.loads(line) for line in err.splitlines() if line.startswith(b"{")]
    steps = [(one["event"], one.get("what"), one.get("percent")) for one in logged]
    begun = steps.index(("loading", "measuring passes", 0))
    assert ("loading", "probing", 100) in steps[:begun]
    assert steps[begun + 1 : begun + 3] == [("loading", "measuring passes", 100), ("ready", None, None)]
    assert "ready" not in {what for _, what, _ in steps}


async def test_its_gauges_show_sessions_and_the_use_of_the_kv_pool(tiny_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await launch(
        *("--model", str(tiny_folder), "--listen", "127.0.0.1:0", "--metrics-port", str(port)),
        *("--max-sessions", "1", "--kv-pool-mib", "8", "--flush-ms", "0"),
    )

    def gauges() -> list[float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
        names = ("sessions_running", "sessions_queued", "kv_positions_held", "kv_positions")
        return [float(lines[f"forerun_verifier_{name}"]) for name in names]

    async with asyncio.timeout(120):
        ready = json.loads(await process.stdout.readline())
        positions = gauges()[3]
        assert gauges() == [0, 0, 0, positions]
        assert positions > 512
        channel = open_channel(ready["address"], Tls())
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        calls = [
            stub.Decode(
                verifier_pb2.DecodeRequest(
                    session_id=name,
                    epoch=1,
                    token_ids=[1, 2, 3],
                    prompt_length=3,
                    sampling=sampling_pb2.Sampling(top_p=1),
                    mode=sampling_pb2.MODE_GREEDY,
                    max_tokens=500,
                    ignore_end_tokens=True,
                )
            )
            for name in ("a", "b")
        ]
        for call in calls:
            await call.read()
        while gauges()[2] == 0:  # noqa: ASYNC110 - until the first pass is under way, over there
            await asyncio.sleep(0)
        running, queued, held, _ = gauges()
        assert (running, queued) == (1, 1)
        assert held % 16 == 0
        for call in calls:
            call.cancel()
        while gauges()[:3] != [0, 0, 0]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await channel.close()
        process.terminate()
        assert await process.wait() == 0


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
