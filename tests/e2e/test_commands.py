"""The commands, as a user runs them."""

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys

import pytest

from forerun.cli.bench.flags import OWN_PROMPTS
from forerun.cli.launch import free_port
from tests.e2e.whole import QUOTE

pytestmark = [pytest.mark.model, pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

FORERUN = [sys.executable, "-m", "forerun.cli"]
SESSION_WITHIN_S = 120
GONE_WITHIN_MS = 30_000


async def forerun(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *FORERUN, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_generate_prints_one_json_object_and_replay_tells_its_passes(smollm2):
    address = smollm2.gateways[0].address
    status, out, err = await forerun("generate", QUOTE, "--gateway", address, "--max-tokens", "48", "--json")
    assert status == 0, err
    said = json.loads(out)
    assert set(said) == {
        "text", "token_ids", "finish_reason", "session_id", "mode", "seed", "exact", "speculation",
        "timings_ms",
    }  # fmt: skip
    assert set(said["speculation"]) == {
        "passes", "tokens_per_pass", "acceptance_rate", "draft_efficiency", "num_drafted", "num_accepted",
    }  # fmt: skip
    assert (said["mode"], said["seed"], said["exact"]) == ("greedy", None, "bitwise")
    assert said["speculation"]["num_accepted"] > 0

    again = ("generate", "--resume", said["session_id"], "--json")
    status, out, err = await forerun(*again, "--gateway", f"127.0.0.1:{free_port()},{address}")
    assert (status, json.loads(out)) == (0, said), err

    status, out, err = await forerun("replay", said["session_id"], "--gateway", address, "--json")
    assert status == 0, err
    told = [json.loads(line) for line in out.splitlines()]
    assert len(told) == said["speculation"]["passes"]
    assert told[-1]["tokens"] == len(said["token_ids"])
    settled = "".join("".join(one["settled"]) for one in told)
    assert settled.removesuffix("<|im_end|>") == said["text"]

    status, out, err = await forerun("replay", said["session_id"], "--gateway", address, "--fast")
    assert status == 0, err
    assert out.count("passes,") >= len(told)
    assert out.count("guesses that the target would have said too") == 1


async def test_generate_streams_the_same_text_with_and_without_drafting(smollm2):
    arguments = ("generate", QUOTE, "--gateway", smollm2.gateways[0].address, "--max-tokens", "24")
    plain = await forerun(*arguments, "--no-draft")
    drafted = await forerun(*arguments)
    assert plain == drafted
    assert plain[0] == 0
    coloured = await forerun(*arguments, "--color")
    assert "\x1b[32m" in coloured[1]
    bare = re.sub("\x1b\\[[0-9;]*m", "", coloured[1])
    assert bare.startswith(plain[1].rstrip("\n"))


async def test_what_the_server_refuses_is_one_message(smollm2):
    address = smollm2.gateways[0].address
    for arguments in (
        ("generate", "word " * 9000),
        ("generate", "hello", "--max-tokens", "100000"),
        ("replay", "no-such-session"),
    ):
        status, out, err = await forerun(*arguments, "--gateway", address)
        assert (status, out) == (1, "")
        assert err.startswith("forerun: ")
        assert err.count("\n") == 1


async def test_up_serves_restarts_what_dies_and_leaves_nothing(tiny_folder, tmp_path):
    http, grpc = (f"127.0.0.1:{free_port()}" for _ in range(2))
    process = await asyncio.create_subprocess_exec(
        *FORERUN, "up", "--model", str(tiny_folder), "--dtype", "float32", "--http", http, "--grpc", grpc,
        "--data-dir", str(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SESSION_WITHIN_S):
            await said(process, "ready")
            status, out, err = await forerun(
                "generate", "a b a b", "--raw", "--gateway", grpc, "--max-tokens", "4", "--json"
            )
            assert status == 0, err
            assert len(json.loads(out)["token_ids"]) <= 4
            for pid in children(process.pid, "drafter"):
                os.kill(pid, signal.SIGKILL)
            await said(process, "drafter was killed by SIGKILL")
            await said(process, "drafter is ready again")
            left = [os.pidfd_open(pid) for pid in children(process.pid)]
            assert len(left) == 4
            process.send_signal(signal.SIGINT)
            await said(
                process, "stopping; answers under way may take 10 s; press Ctrl-C again to stop at once"
            )
            assert await process.wait() == 128 + signal.SIGINT
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert all(gone(one) for one in left)


async def test_nothing_of_up_outlives_its_sudden_death(tiny_folder, tmp_path):
    http, grpc = (f"127.0.0.1:{free_port()}" for _ in range(2))
    process = await asyncio.create_subprocess_exec(
        *FORERUN, "up", "--model", str(tiny_folder), "--dtype", "float32", "--http", http, "--grpc", grpc,
        "--data-dir", str(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(SESSION_WITHIN_S):
        await said(process, "ready")
        left = [os.pidfd_open(pid) for pid in children(process.pid)]
        process.kill()
        await process.wait()
    assert len(left) == 4
    assert all(gone(one) for one in left)


async def said(process, phrase: str) -> None:
    """Return once the process has said a line with this phrase."""
    while line := (await process.stderr.readline()).decode():
        if phrase in line:
            return
    raise AssertionError(f"it ended without saying {phrase!r}")


def children(parent: int, word: str = "") -> list[int]:
    """Processes of this parent whose command line has this word."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 1) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, args in rows if word in args.split() or not word]


def gone(descriptor: int) -> bool:
    """Whether the process ends within the time a shutdown may take."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    ended = bool(waiting.poll(GONE_WITHIN_MS))
    os.close(descriptor)
    return ended


async def test_an_audit_of_every_drafter_agrees(tmp_path):
    drafters = [flag for name in ("ngram", "random", "target", "replay") for flag in ("--drafter", name)]
    status, out, err = await forerun(
        "audit", "--prompts", str(OWN_PROMPTS), "--limit", "8", "--sessions", "8", "--max-tokens", "24",
        "--window", "4", *drafters, "--reference", str(tmp_path / "reference.json"), "--json",
    )  # fmt: skip
    assert status == 0, out + err
    said = json.loads(out)
    assert [one["agreements"] for one in said["drafters"]] == [8, 8, 8, 8]
    random, replay = said["drafters"][1]["counts"], said["drafters"][3]["counts"]
    assert random["corrected"] > 0
    assert min(replay["accepted"], replay["corrected"], replay["bonus"], replay["salvaged"]) > 0


async def test_the_demo_ends_well():
    status, out, err = await forerun("demo", "--max-tokens", "48")
    assert status == 0, out + err
    assert "Every row is identical" in out
    assert "killed with SIGKILL" in out
