"""The ground on which set-ups compete: one machine, one store, a verifier for every set-up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import grpc
from rich.console import Console

from forerun.cli.bench.baseline import Baseline
from forerun.cli.bench.contestant import InProcess, Served
from forerun.cli.bench.course import Observation
from forerun.cli.bench.machine import Bystanders, facts
from forerun.cli.bench.relay import Relay
from forerun.cli.bench.report import Measured
from forerun.cli.bench.settings import BenchSettings
from forerun.cli.bench.setups import BASELINES, SetUp
from forerun.cli.client import Client
from forerun.cli.cores import share_out
from forerun.cli.progress import prepare, start
from forerun.cli.stack import LocalService, Stack
from forerun.cli.verifier_client import DEADLINE_S, describe
from forerun.core.types import ModelInfo
from forerun.engine.cores import usable_cores
from forerun.errors import InvalidRequest
from forerun.v1 import drafter_pb2, drafter_pb2_grpc
from forerun.wire.channel import open_channel
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls
from gateway.text import Tokenizer

MOST_SESSIONS = 256


@asynccontextmanager
async def field(settings: BenchSettings, console: Console) -> AsyncIterator[Field]:
    """Inside, the store runs; at the end nothing of the run is left. Raises ForerunError."""
    sources = [f"model:{settings.drafter_model}"] if settings.drafter_model else []
    await prepare(settings.model, sources, console)
    shares = share_out(usable_cores(), verifiers=1, sources=[])
    with ThreadPoolExecutor(1, thread_name_prefix="baseline") as thread:
        async with (
            Stack(model=settings.model, dtype=settings.dtype, shares=shares) as stack,
            AsyncExitStack() as connections,
        ):
            store = stack.add_store(fsync="everysec")
            await start(stack, [store], console)
            yield Field(settings, stack, store, connections, thread, console)


class Field:
    """Brings contestants up. Every set-up has a verifier of its own, so none finds another's KV.

    Only one contestant computes at a time, so each may have every core.
    """

    def __init__(
        self,
        settings: BenchSettings,
        stack: Stack,
        store: LocalService,
        connections: AsyncExitStack,
        thread: ThreadPoolExecutor,
        console: Console,
    ) -> None:
        self.settings = settings
        self.stack = stack
        self.console = console
        self.threads: dict[str, int] = {}
        self.notes: list[str] = []
        self._store = store
        self._connections = connections
        self._thread = thread
        self._tokenizer: Tokenizer | None = None
        self._facts = facts()
        self._others_cpu_share = 0.0

    async def serve(self, set_ups: Sequence[SetUp]) -> list[Served]:
        """Return these set-ups, running. Raises InvalidRequest for a drafter of another vocabulary."""
        relays = [await self._relay() if one.relayed else None for one in set_ups]
        verifiers = [self._verifier(one, relay) for one, relay in zip(set_ups, relays, strict=True)]
        drafters = [self._drafters(one) for one in set_ups]
        await start(self.stack, [*verifiers, *(one for each in drafters for one in each)], self.console)
        gateways = []
        model, tokenizer = await describe(verifiers[0].address)
        self._tokenizer = self._tokenizer or await asyncio.to_thread(Tokenizer, tokenizer)
        for verifier, relay, each in zip(verifiers, relays, drafters, strict=True):
            if relay:
                relay.target = verifier.address
            for drafter in each:
                await check_fits(drafter.address, model)
            gateways.append(self.stack.add_gateway(self._store.address, [verifier], each))
        await start(self.stack, gateways, self.console)
        served = []
        for index, (set_up, gateway) in enumerate(zip(set_ups, gateways, strict=True)):
            connections = await self._connections.enter_async_context(AsyncExitStack())
            if relay := relays[index]:
                connections.push_async_callback(relay.close)
            client = await connections.enter_async_context(Client(gateway.address))
            services = (gateway, *drafters[index], verifiers[index])
            served.append(Served(set_up, client, services, relay, connections))
        return served

    async def retire(self, served: Served) -> None:
        """Its services have ended."""
        await served.close()
        await self.stack.remove(served.services)

    async def baselines(self) -> list[InProcess]:
        """Return the baselines that are wanted and that can run here; why others cannot is noted."""
        wanted = [name for name in BASELINES if self.settings.wants(name)]
        with self.console.status("loading the baselines"):
            loop = asyncio.get_running_loop()
            loaded = await loop.run_in_executor(self._thread, self._load_baselines, wanted)
        self.threads |= {name: baseline.threads for name, baseline in loaded.items()}
        tokenizer = self.tokenizer
        return [
            InProcess(name, baseline, self._thread, self.stack, tokenizer)
            for name, baseline in loaded.items()
        ]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, the processor time that others take from this machine is counted."""
        bystanders = Bystanders(self.stack)
        yield
        self._others_cpu_share = bystanders.share()

    def measured(
        self,
        bench: str,
        served: Sequence[Served],
        seen: Sequence[Observation],
        pairs: Sequence[tuple[str, str]],
        labels: Mapping[str, str] | None = None,
    ) -> Measured:
        """Return the run's result, with the conditions it was made under; `labels` instead of the set-ups' own."""
        settings = self.settings
        idle = [one.set_up.label for one in served if one.set_up.drafts and not one.num_tested]
        notes = [f"{label}: no drafted token was tested, so it was plain decoding" for label in idle]
        return Measured(
            bench,
            tuple(seen),
            labels={one.name: one.set_up.label for one in served} | BASELINES | dict(labels or {}),
            pairs=tuple(pairs),
            exact=frozenset(one.name for one in served),
            notes=(*self.notes, *notes),
            conditions={
                "model": settings.model,
                "dtype": settings.dtype,
                "max_tokens": settings.max_tokens,
                "repeat": settings.repeat,
                "prompts": len(settings.prompts),
                "drafter_model": settings.drafter_model,
                "round_trip_ms": settings.round_trip_ms,
                "threads": self.threads,
                "others_cpu_share": self._others_cpu_share,
            }
            | self._facts,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's. Known once anything is served."""
        if self._tokenizer is None:
            raise InvalidRequest("nothing is served yet")
        return self._tokenizer

    def _load_baselines(self, names: Sequence[str]) -> dict[str, Baseline]:
        from forerun.cli.bench import llama
        from forerun.cli.bench.bare_engine import BareEngine
        from forerun.cli.bench.hf_generate import TransformersGenerate, load_model
        from forerun.engine.load import load_engine

        model, dtype, threads = self.settings.model, self.settings.dtype, usable_cores()
        loaded: dict[str, Baseline] = {}
        if any(name.startswith("transformers") for name in names):
            weights = load_model(model, dtype)
            for name in ("transformers", "transformers-lookup"):
                if name in names:
                    by_lookup = name == "transformers-lookup"
                    loaded[name] = TransformersGenerate(weights, threads, prompt_lookup=by_lookup)
        if "llama.cpp" in names:
            if missing := llama.why_not(model):
                self.notes.append(f"llama.cpp is left out: {missing}")
            else:
                loaded["llama.cpp"] = llama.LlamaCpp(model, threads)
        if "engine" in names:
            loaded["engine"] = BareEngine(load_engine(model, dtype=dtype, threads=threads)[0], threads)
        return loaded

    async def _relay(self) -> Relay:
        relay = Relay(self.settings.round_trip_ms / 2000)
        await relay.start()
        self._connections.push_async_callback(relay.close)  # also when nothing comes to be served
        return relay

    def _verifier(self, set_up: SetUp, relay: Relay | None) -> LocalService:
        sources = [set_up.source] if set_up.source else []
        threads = share_out(usable_cores(), verifiers=1, sources=sources).verifier
        self.threads[set_up.name] = threads
        flags = ["--max-sessions", str(MOST_SESSIONS)]
        advertised = ["--advertise", relay.address] if relay else []
        return self.stack.add_verifier(*flags, *advertised, threads=threads, lookup=set_up.lookup)

    def _drafters(self, set_up: SetUp) -> list[LocalService]:
        if not set_up.source:
            return []
        threads = share_out(usable_cores(), verifiers=1, sources=[set_up.source]).drafter
        flags = ["--max-sessions", str(MOST_SESSIONS)]
        return [self.stack.add_drafter(set_up.source, *flags, threads=threads)]


async def check_fits(address: str, target: ModelInfo) -> None:
    """Return if this drafter has the target's vocabulary, or needs none. Raises InvalidRequest."""
    async with open_channel(address, Tls()) as channel:
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        try:
            said = await stub.GetModel(drafter_pb2.DrafterServiceGetModelRequest(), timeout=DEADLINE_S)
        except grpc.RpcError as fault:
            raise from_rpc_error(fault) from fault
    own = said.model.vocab_fingerprint
    if own and own != target.vocab_fingerprint:
        raise InvalidRequest(
            f"{said.source} cannot draft for {target.name}: it has another vocabulary", field="drafter-model"
        )
