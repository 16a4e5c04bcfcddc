"""What a long prompt does to those who stream beside it: their gaps between tokens, in ordinary passes.

A verifier process decodes --sessions texts; a prompt of --prompt tokens arrives, and every gap until it has its first
token counts. The median gap between two messages of a session for a while before and after is the ordinary pass (a
machine's pace wanders). `worst_gap` is as the client sees it, with whatever else the machine does; `worst_pass` is the
pass alone. JSON on stdout.

    python benchmarks/fairness.py --threads 2 --rounds 3 > fairness.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.v1 import sampling_pb2, verifier_pb2, verifier_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.tls import Tls

ORDINARY_TOKENS = 48  # of each session, before the prompt comes and after it has its answer
CONTEXT_OF_EACH = 100
AFTER = 8  # tokens of the long prompt's answer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-pool-mib", type=int, default=600)
    arguments = parser.parse_args()
    with verifier(arguments) as address:
        rounds = asyncio.run(measure(address, arguments))
    worst = statistics.median(one["worst_gap"] for one in rounds)
    print(json.dumps({"settings": vars(arguments), "worst_gap_median": worst, "rounds": rounds}, indent=2))


@contextlib.contextmanager
def verifier(arguments: argparse.Namespace) -> Iterator[str]:
    """The address of a verifier process that decodes plainly and tells every pass at once."""
    flags = ["--model", arguments.model, "--dtype", arguments.dtype, "--threads", str(arguments.threads)]
    flags += ["--listen", "127.0.0.1:0", "--kv-pool-mib", str(arguments.kv_pool_mib)]
    plain = {"FORERUN_LOOKUP": "false", "FORERUN_FLUSH_MS": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "verifier_service", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | plain,
        text=True,
    )
    try:
        ready = process.stdout.readline() if process.stdout else ""
        if not ready:
            raise SystemExit("the verifier did not start")
        yield json.loads(ready)["address"]
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Stream:
    """When a session's messages came and what their passes took."""

    times: list[float] = field(default_factory=list)
    passes_ms: list[float] = field(default_factory=list)

    def gaps(self, since: float, until: float) -> list[float]:
        """Milliseconds between neighbouring messages, the later within [since, until]."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return [1e3 * (later - sooner) for sooner, later in pairs if since <= later <= until]


async def measure(address: str, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """One entry a round."""
    async with open_channel(address, Tls()) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        model = (await stub.GetModel(verifier_pb2.VerifierServiceGetModelRequest())).model
        rng = np.random.default_rng(0)

        def text(length: int) -> list[int]:
            return [int(x) for x in rng.integers(0, model.vocab_size, length)]

        found = []
        for number in range(arguments.rounds):
            short = [text(CONTEXT_OF_EACH) for _ in range(arguments.sessions)]
            found.append(await one_round(stub, number, short, text(arguments.prompt), model.max_context))
            print(json.dumps(found[-1]), file=sys.stderr)
        return found


async def one_round(
    stub: verifier_pb2_grpc.VerifierServiceStub,
    number: int,
    short: Sequence[list[int]],
    long: list[int],
    context: int,
) -> dict[str, float]:
    """Stream, let the prompt come, count until it has its first token."""
    streams = [Stream() for _ in short]
    began = asyncio.Condition()
    tasks = [
        asyncio.create_task(follow(stub, f"r{number}s{i}", text, context - len(text), stream, began))
        for i, (text, stream) in enumerate(zip(short, streams, strict=True))
    ]
    async with began:
        await began.wait_for(lambda: all(len(s.times) > ORDINARY_TOKENS for s in streams))
    arrived = time.monotonic()
    prompt = Stream()
    await follow(stub, f"r{number}long", long, AFTER, prompt, began)
    ended = time.monotonic()
    goal = [len(s.times) + ORDINARY_TOKENS for s in streams]
    async with began:
        await began.wait_for(lambda: all(len(s.times) > most for s, most in zip(streams, goal, strict=True)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    first = prompt.times[0]
    before = [gap for s in streams for gap in s.gaps(0, arrived)]
    after = [gap for s in streams for gap in s.gaps(ended, math.inf)]
    during = [gap for s in streams for gap in s.gaps(arrived, first)]
    ordinary = (statistics.median(before) + statistics.median(after)) / 2
    passes = [
        ms for s in streams for at, ms in zip(s.times, s.passes_ms, strict=True) if arrived <= at <= first
    ]
    plain = [
        ms for s in streams for at, ms in zip(s.times, s.passes_ms, strict=True) if not arrived <= at <= ended
    ]
    return {
        "ordinary_ms": ordinary,
        "ordinary_after_over_before": statistics.median(after) / statistics.median(before),
        "worst_gap_without": max(before + after) / ordinary,
        "worst_gap": max(during) / ordinary,
        "p99_gap": float(np.quantile(during, 0.99)) / ordinary,
        "median_gap": statistics.median(during) / ordinary,
        "worst_pass": max(passes) / statistics.median(plain),
        "first_token_s": first - arrived,
        "passes": len(during) / len(short),
    }


async def follow(
    stub: verifier_pb2_grpc.VerifierServiceStub,
    session_id: str,
    text: list[int],
    max_tokens: int,
    stream: Stream,
    came: asyncio.Condition,
) -> None:
    """Decode greedily; note every message that brings tokens."""
    request = verifier_pb2.DecodeRequest(
        session_id=session_id,
        epoch=1,
        token_ids=text,
        prompt_length=len(text),
        sampling=sampling_pb2.Sampling(temperature=0, top_p=1),
        mode=sampling_pb2.MODE_GREEDY,
        max_tokens=max_tokens,
        ignore_end_tokens=True,
    )
    async for settled in messages(stub, request):
        stream.times.append(time.monotonic())
        stream.passes_ms.append(getattr(settled, "pass").pass_us / 1e3)
        async with came:
            came.notify_all()


async def messages(
    stub: verifier_pb2_grpc.VerifierServiceStub, request: verifier_pb2.DecodeRequest
) -> AsyncIterator[verifier_pb2.Settled]:
    """What each pass settled."""
    async for response in stub.Decode(request):
        for settled in response.settled:
            yield settled


if __name__ == "__main__":
    main()
