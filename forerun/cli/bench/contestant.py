"""Who competes: a set-up of ours over its gateway, or a baseline in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Protocol

from forerun.cli.bench.baseline import Ask, Baseline
from forerun.cli.bench.jobs import Job
from forerun.cli.bench.relay import Relay
from forerun.cli.bench.sample import Answered, Sample
from forerun.cli.bench.setups import SetUp
from forerun.cli.client import Answer, Client
from forerun.cli.parallel import in_parallel
from forerun.cli.stack import LocalService, Stack
from forerun.core.types import Sampling
from gateway.request import GenerationRequest
from gateway.text import Tokenizer


class Contestant(Protocol):
    """Answers the jobs of a cell."""

    @property
    def name(self) -> str:
        """The name of its set-up."""

    @property
    def most_sessions(self) -> int | None:
        """Answers it can have under way at a time; None: any number."""

    async def run(self, jobs: Sequence[Job], sessions: int) -> Sample:
        """Answer all jobs, `sessions` at a time: as one ends the next begins. Raises ForerunError."""


@dataclass(slots=True)
class _Stretch:
    """The time from the start until the first session finds nothing more to do."""

    started: float = field(default_factory=time.perf_counter)
    ended: float | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens)

    def idle(self) -> None:
        """A session has nothing more to do."""
        if self.ended is None:
            self.ended = time.perf_counter()

    def tokens(self) -> int:
        """Tokens that came while every session had something to do."""
        return sum(count for at, count in self.arrivals if self.ended is None or at <= self.ended)

    def seconds(self) -> float:
        return (self.ended or time.perf_counter()) - self.started


class Served:
    """A set-up of real services, asked over gRPC as any client asks."""

    most_sessions = None

    def __init__(
        self,
        set_up: SetUp,
        client: Client,
        services: Sequence[LocalService],
        relay: Relay | None,
        connections: AsyncExitStack,
    ) -> None:
        self.set_up = set_up
        self.services = tuple(services)
        self.relay = relay
        self.num_tested = 0  # drafted tokens that were checked, ever
        self._client = client
        self._connections = connections

    async def close(self) -> None:
        """Nothing is connected to its services any more."""
        await self._connections.aclose()

    @property
    def name(self) -> str:
        return self.set_up.name

    async def run(self, jobs: Sequence[Job], sessions: int) -> Sample:
        done: dict[int, Answered] = {}
        stretch = _Stretch()

        async def one(numbered: tuple[int, Job]) -> None:
            index, job = numbered
            done[index] = await self._answer(job, stretch)

        await in_parallel(list(enumerate(jobs)), sessions, one, on_idle=stretch.idle)
        return Sample(tuple(done[index] for index in sorted(done)), stretch.tokens(), stretch.seconds())

    async def natural(self, job: Job) -> tuple[int, ...]:
        """Return the answer up to its own end, at most `num_tokens`."""
        request = GenerationRequest(
            messages=job.messages, max_tokens=job.num_tokens, no_draft=self.set_up.no_draft
        )
        return tuple((await self._client.answer(request)).token_ids)

    async def _answer(self, job: Job, stretch: _Stretch) -> Answered:
        request = GenerationRequest(
            messages=job.messages,
            sampling=Sampling(temperature=job.temperature),
            seed=job.seed,
            max_tokens=job.num_tokens,
            no_draft=self.set_up.no_draft,
            ignore_end_tokens=True,
        )
        answer, started, first, known = Answer(), time.perf_counter(), 0.0, 0
        async for event in self._client.generate(request):
            answer.take(event)
            if (count := len(answer.token_ids)) > known:
                now = time.perf_counter()
                first = first or now - started
                stretch.arrivals.append((now, count - known))
                known = count
        seconds = time.perf_counter() - started
        speculation = answer.complete()[1].speculation
        self.num_tested += speculation.num_tested
        return Answered(
            job, tuple(answer.token_ids), seconds, first,
            passes=speculation.passes, num_tested=speculation.num_tested, num_accepted=speculation.num_accepted,
        )  # fmt: skip


class InProcess:
    """A baseline, run in the one thread of all baselines while our services rest."""

    def __init__(
        self, name: str, baseline: Baseline, thread: ThreadPoolExecutor, stack: Stack, tokenizer: Tokenizer
    ) -> None:
        self._name = name
        self.baseline = baseline
        self._thread = thread
        self._stack = stack
        self._tokenizer = tokenizer

    @property
    def name(self) -> str:
        return self._name

    @property
    def most_sessions(self) -> int | None:
        return self.baseline.most_sessions

    async def run(self, jobs: Sequence[Job], sessions: int) -> Sample:
        asks = [Ask(tuple(self._tokenizer.chat(job.messages)), job.num_tokens) for job in jobs]
        before = self._stack.cpu_seconds()
        done = await asyncio.get_running_loop().run_in_executor(
            self._thread, self.baseline.answers, asks, sessions
        )
        answers = [
            Answered(job, said.token_ids, said.seconds, said.first_token_s)
            for job, said in zip(jobs, done.answers, strict=True)
        ]
        return Sample(tuple(answers), done.tokens, done.seconds, self._stack.cpu_seconds() - before)
