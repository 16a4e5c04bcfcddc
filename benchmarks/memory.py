"""What a verifier process takes of memory, and that it takes no more with time; JSON on stdout, MiB.

`peak`: with --sessions sessions of --length tokens each, all held at once, the process' peak of resident memory, and
what it is made of: the weights' file, the KV pool, and the rest. `growth`: a tiny model, resident memory after each
tenth of --short sessions that came and went, from the first tenth on.

    python benchmarks/memory.py > memory.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.engine.load import find_folder
from forerun.engine.random_model import save_tiny_model
from forerun.engine.weights import weight_files
from forerun.v1 import model_pb2, sampling_pb2, verifier_pb2, verifier_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.tls import Tls

ANSWER = 40  # tokens of each session's answer; the rest is prompt
AT_ONCE = 16  # short sessions
MIB = 1 << 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--kv-pool-mib", type=int, default=720)
    parser.add_argument("--short", type=int, default=2000)
    arguments = parser.parse_args()
    print(json.dumps({"peak": peak(arguments), "growth": growth(arguments.short)}, indent=2))


def peak(arguments: argparse.Namespace) -> dict[str, float]:
    """Weights, pool and the rest of the peak while all sessions are held."""
    folder = find_folder(arguments.model, lambda *_: None)
    weights = sum(path.stat().st_size for path in weight_files(folder)) / MIB
    flags = ["--model", arguments.model, "--dtype", arguments.dtype]
    with verifier(*flags, "--kv-pool-mib", str(arguments.kv_pool_mib)) as process:
        loaded = process.resident("VmRSS"), process.resident("VmHWM")
        lengths = [arguments.length - ANSWER] * arguments.sessions
        asyncio.run(process.decode(lengths, at_once=len(lengths)))
        highest = process.resident("VmHWM")
    return {
        "weights": weights,
        "pool": arguments.kv_pool_mib,
        "peak": highest,
        "rest": highest - weights - arguments.kv_pool_mib,
        "loaded": loaded[0],
        "peak_of_loading": loaded[1],
    }


def growth(num_sessions: int) -> list[float]:
    """Resident memory after each tenth of the sessions."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder))
        with verifier("--model", folder, "--kv-pool-mib", "8", "--threads", "1") as process:
            for _ in range(10):
                asyncio.run(process.decode([12] * (num_sessions // 10), at_once=AT_ONCE))
                found.append(process.resident("VmRSS"))
    return found


@dataclass
class Process:
    """A verifier process, its address and how many sessions it has had."""

    pid: int
    address: str
    sessions: int = 0

    def resident(self, what: str) -> float:
        """MiB of resident memory: VmRSS now, VmHWM at most so far."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        if found is None:
            raise SystemExit(f"no {what} in the status of process {self.pid}")
        return int(found[1]) / 1024

    async def decode(self, prompt_lengths: Sequence[int], *, at_once: int) -> None:
        """Run a session of ANSWER tokens after a random prompt of each length, so many at once."""
        async with open_channel(self.address, Tls()) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            model = (await stub.GetModel(verifier_pb2.VerifierServiceGetModelRequest())).model
            room = asyncio.Semaphore(at_once)
            await asyncio.gather(*(self._one(stub, model, room, length) for length in prompt_lengths))

    async def _one(
        self,
        stub: verifier_pb2_grpc.VerifierServiceStub,
        model: model_pb2.Model,
        room: asyncio.Semaphore,
        prompt_length: int,
    ) -> None:
        async with room:
            self.sessions += 1
            rng = np.random.default_rng(self.sessions)
            request = verifier_pb2.DecodeRequest(
                session_id=f"s{self.sessions}",
                epoch=1,
                token_ids=[int(x) for x in rng.integers(0, model.vocab_size, prompt_length)],
                prompt_length=prompt_length,
                sampling=sampling_pb2.Sampling(temperature=0, top_p=1),
                mode=sampling_pb2.MODE_GREEDY,
                max_tokens=ANSWER,
                ignore_end_tokens=True,
            )
            async for _ in stub.Decode(request):
                pass


@contextlib.contextmanager
def verifier(*flags: str) -> Iterator[Process]:
    """A verifier process of these flags."""
    process = subprocess.Popen(
        [sys.executable, "-m", "verifier_service", *flags, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        ready = process.stdout.readline() if process.stdout else ""
        if not ready:
            raise SystemExit("the verifier did not start")
        yield Process(process.pid, json.loads(ready)["address"])
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
