"""One session at a time through four ways of generating, interleaved prompt by prompt."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forerun.cli.bench.baselines import BareEngine, Baseline, TransformersGenerate
from forerun.cli.bench.machine import Bystanders
from forerun.cli.client import Answer, Client
from forerun.cli.cores import share_out
from forerun.cli.progress import prepare, start
from forerun.cli.prompts import Prompt
from forerun.cli.stack import Stack
from forerun.cli.verifier_client import describe
from forerun.engine.cores import usable_cores
from gateway.request import GenerationRequest
from gateway.text import Tokenizer

Messages = tuple[tuple[str, str], ...]

WARM_UP = Prompt("warm-up", "", "Count from one to twenty in words.")


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What is measured."""

    prompts: tuple[Prompt, ...]
    max_tokens: int
    rounds: int
    model: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Run:
    """One answer by one contestant. `seconds`: wall time with prefill. `idle_cpu_s`: our idle services."""

    contestant: str
    round: int
    prompt_id: str
    category: str
    token_ids: tuple[int, ...]
    seconds: float
    first_token_s: float
    passes: int | None = None
    num_accepted: int | None = None
    idle_cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """All runs, the threads of each contestant, and the share of the machine that other processes took meanwhile."""

    runs: tuple[Run, ...]
    threads: dict[str, int]
    others_cpu_share: float


async def run_single(settings: BenchSettings, console: Console) -> Measured:
    """Return all runs. Each of our two set-ups has its own verifier: neither finds the other's KV."""
    prepare(settings.model, console)
    shares = share_out(
        usable_cores(), verifiers=1, sources=["ngram"]
    )  # only one of the two computes at a time
    with ThreadPoolExecutor(1, thread_name_prefix="baseline") as thread:
        async with Stack(model=settings.model, dtype=settings.dtype, shares=shares) as stack:
            store, *verifiers = stack.add_store(), stack.add_verifier(), stack.add_verifier()
            drafter = stack.add_drafter("ngram")
            await start(stack, list(stack.services), console)
            tokenizer = Tokenizer((await describe(verifiers[0].address))[1])
            plain = stack.add_gateway(store.address, verifiers[:1], [])
            ngram = stack.add_gateway(store.address, verifiers[1:], [drafter])
            await start(stack, [plain, ngram], console)
            async with Client(plain.address) as plain_client, Client(ngram.address) as ngram_client:
                clients = {"plain": plain_client, "ngram": ngram_client}
                bench = Bench(settings, stack, clients, tokenizer, thread)
                with console.status("loading the baselines"):
                    await bench.load()
                others = Bystanders(stack)
                runs = await bench.measure(console)
                return Measured(tuple(runs), bench.threads | {"ours": shares.verifier}, others.share())


class Bench:
    """The contestants of one run, and their order."""

    def __init__(
        self,
        settings: BenchSettings,
        stack: Stack,
        clients: dict[str, Client],
        tokenizer: Tokenizer,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._settings = settings
        self._stack = stack
        self._clients = clients
        self._tokenizer = tokenizer
        self._thread = thread
        self._baselines: dict[str, Baseline] = {}

    async def load(self) -> None:
        """The baselines are loaded, in the thread that will run them."""
        settings, loop = self._settings, asyncio.get_running_loop()
        for name, kind in (("transformers", TransformersGenerate), ("engine", BareEngine)):
            self._baselines[name] = await loop.run_in_executor(
                self._thread, kind, settings.model, settings.dtype, usable_cores()
            )

    @property
    def threads(self) -> dict[str, int]:
        """Threads of each baseline."""
        return {name: baseline.threads for name, baseline in self._baselines.items()}

    async def measure(self, console: Console) -> list[Run]:
        """Return all runs: after a warm-up, A B C D per prompt, the order rotating from prompt to prompt."""
        names = [*self._clients, *self._baselines]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        runs: list[Run] = []
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(
                "warm-up", total=len(names) * len(self._settings.prompts) * self._settings.rounds
            )
            for name in names:
                await self._run(name, WARM_UP, 0)
            for number in range(self._settings.rounds):
                for index, prompt in enumerate(self._settings.prompts):
                    shift = index % len(names)
                    for name in names[shift:] + names[:shift]:
                        progress.update(bar, description=f"{prompt.category}: {name}")
                        runs.append(await self._run(name, prompt, number))
                        progress.advance(bar)
        return runs

    async def _run(self, name: str, prompt: Prompt, number: int) -> Run:
        messages = messages_of(prompt, number)
        if name in self._clients:
            return await self._ours(name, prompt, number, messages)
        before = self._stack.cpu_seconds()
        ids = self._tokenizer.chat(messages)
        answer = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._baselines[name].answer, ids, self._settings.max_tokens
        )
        idle = self._stack.cpu_seconds() - before
        return Run(name, number, prompt.prompt_id, prompt.category, *answer, idle_cpu_s=idle)

    async def _ours(self, name: str, prompt: Prompt, number: int, messages: Messages) -> Run:
        request = GenerationRequest(messages=messages, max_tokens=self._settings.max_tokens)
        answer, started, first = Answer(), time.perf_counter(), 0.0
        async for event in self._clients[name].generate(request):
            answer.take(event)
            if answer.token_ids and not first:
                first = time.perf_counter() - started
        seconds = time.perf_counter() - started
        _, finished = answer.complete()
        return Run(
            name, number, prompt.prompt_id, prompt.category, tuple(answer.token_ids), seconds, first,
            passes=finished.speculation.passes, num_accepted=finished.speculation.num_accepted,
        )  # fmt: skip


def messages_of(prompt: Prompt, number: int) -> Messages:
    """Return the conversation of a round; from the second on a system message keeps the KV cache cold."""
    return (
        prompt.messages
        if number == 0
        else (("system", f"Round {number}. You are helpful."), *prompt.messages)
    )
