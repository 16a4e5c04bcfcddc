"""`forerun up`: everything on this machine, in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from forerun.cli.client import DEFAULT_ADDRESS
from forerun.cli.cores import share_out
from forerun.cli.data_dir import claimed
from forerun.cli.flags import Dtype, Target, one_of, said_by
from forerun.cli.foreground import progress_console, run
from forerun.cli.launch import Log, readable
from forerun.cli.progress import prepare, start
from forerun.cli.stack import LocalService, Stack
from forerun.engine.cache_folder import cache_folder
from forerun.engine.cores import usable_cores
from forerun.errors import ForerunError, InvalidRequest, Unavailable
from forerun.wire.address import Address
from forerun.wire.binding import check_free
from gateway.store.connection import masked
from gateway.store.store import Store

COLORS = {"store": "magenta", "verifier": "cyan", "drafter": "green", "gateway": "yellow"}
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 15.0
STEADY_S = 60.0  # a service that ran this long starts over with the first backoff


class Fsync(StrEnum):
    """When valkey's append-only file reaches the disk."""

    ALWAYS = "always"
    EVERYSEC = "everysec"


def up(
    context: typer.Context,
    *,
    model: Target = "smollm2",
    source: Annotated[
        list[str] | None, typer.Option(help="Drafter: ngram or model:SPEC; repeatable (default: ngram).")
    ] = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Start no drafter.")] = False,
    http: Annotated[
        str, typer.Option(help="Address of the OpenAI-compatible door.", envvar="FORERUN_HTTP")
    ] = "127.0.0.1:8080",
    grpc: Annotated[
        str, typer.Option(help="Address of the gRPC door.", envvar="FORERUN_GRPC")
    ] = "127.0.0.1:8081",
    redis_url: Annotated[
        str | None, typer.Option(help="Use this Redis instead of starting one.", envvar="FORERUN_REDIS_URL")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where sessions are kept (default: in the cache, one folder a gRPC port)."),
    ] = None,
    fsync: Annotated[
        Fsync, one_of(Fsync, "always: no power cut loses a token; everysec: up to one second of them.")
    ] = Fsync.ALWAYS,
    dtype: Dtype = "bfloat16",
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what the services log.")] = False,
) -> None:
    """Start a store, a verifier, drafters and a gateway on this machine; Ctrl-C stops them."""
    if no_draft and source:
        raise typer.BadParameter(
            "--no-draft starts no drafter: leave one of the two out", param_hint="--source"
        )
    doors = check_doors({said_by(context, "http"): http, said_by(context, "grpc"): grpc})
    for flag, door in zip(("http", "grpc"), doors, strict=True):
        check_free(door, flag)
    sources = [] if no_draft else (source or ["ngram"])
    folder = data_dir or cache_folder() / f"sessions-{doors[1].port}"
    console = progress_console()

    async def body(kept: Path) -> None:
        if redis_url:
            await check_store(redis_url, said_by(context, "redis_url"))
        await prepare(model, sources, console)
        shares = share_out(usable_cores(), verifiers=1, sources=sources)
        log = _printer(console) if verbose else None
        async with Stack(model=model, dtype=dtype, shares=shares, log=log) as stack:
            store_url = redis_url or stack.add_store(kept, fsync=fsync.value).address
            verifier = stack.add_verifier(lookup=not no_draft)
            drafters = [stack.add_drafter(one) for one in sources]
            await start(stack, list(stack.services), console)
            gateway = stack.add_gateway(store_url, [verifier], drafters, http=http, grpc=grpc)
            await start(stack, [gateway], console)
            _announce(console, stack, store_url, sources)
            try:
                await watch(stack, console)
            finally:
                # The gateway gets its grace to end its answers, then the verifier.
                console.print(
                    f"forerun: stopping; answers under way may take {2 * stack.grace_s:.0f} s; "
                    "press Ctrl-C again to stop at once",
                    style="dim",
                )

    with nullcontext(folder) if redis_url else claimed(folder) as kept:
        run(body(kept))


async def check_store(url: str, named: str) -> None:
    """The store answers. Raises Unavailable for one that does not; what is no Redis URL is a usage error (exit 2).

    `named`: the flag or variable that gave it.
    """
    try:
        store = Store(url)
    except InvalidRequest as fault:
        raise typer.BadParameter(fault.message, param_hint=named) from fault
    try:
        await store.ping()
    except ForerunError as fault:
        raise Unavailable(
            f"no Redis or Valkey answers at {masked(url)} ({fault.__cause__ or fault}): start it, correct {named}, "
            "or leave that out and `forerun up` starts a store of its own"
        ) from fault
    finally:
        await store.close()


def check_doors(texts: Mapping[str, str]) -> list[Address]:
    """Return the doors, by what gave them, a flag or a variable; each is on this machine's loopback, on its own port.

    Raises one usage error (exit 2) that names what gave the wrong one.
    """
    doors: dict[str, Address] = {}
    for named, text in texts.items():
        door = _door(named, text)
        for other, earlier in doors.items():
            if door.port == earlier.port != 0:
                raise typer.BadParameter(
                    f"port {door.port} is already that of {other}: choose another", param_hint=named
                )
        doors[named] = door
    return list(doors.values())


def _door(named: str, text: str) -> Address:
    try:
        door = Address.parse(text)
    except InvalidRequest as fault:
        raise typer.BadParameter(fault.message, param_hint=named) from fault
    if not door.is_loopback:
        raise typer.BadParameter(
            f"{door} can be reached from other machines, and `forerun up` serves this one alone: run "
            "`forerun gateway` there, with --tls-cert, --tls-key and --tls-ca, or with --insecure on a "
            "network that is trusted",
            param_hint=named,
        )
    return door


def _announce(console: Console, stack: Stack, store_url: str, sources: Sequence[str]) -> None:
    (gateway,) = stack.by_role("gateway")
    http = gateway.addresses["http"]
    others = [f"verifier {one.address}" for one in stack.by_role("verifier")]
    others += [
        f"drafter {one.address} ({s})" for one, s in zip(stack.by_role("drafter"), sources, strict=True)
    ]
    where = "" if gateway.address == DEFAULT_ADDRESS else f"--gateway {gateway.address} "
    console.print(
        f"[bold green]ready[/]  http://{http}/v1  ·  grpc {gateway.address}  ·  Ctrl-C stops", soft_wrap=True
    )
    console.print(f"       {'  ·  '.join(others)}  ·  store {store_url}", style="dim", soft_wrap=True)
    body = '{"messages": [{"role": "user", "content": "Name three rivers."}]}'
    console.print(
        f"try    curl http://{http}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        style="dim",
        soft_wrap=True,
        markup=False,
    )
    console.print(
        f"or     forerun generate {where}'Name three rivers.'", style="dim", markup=False, soft_wrap=True
    )


def _printer(console: Console) -> Log:
    def log(name: str, line: str) -> None:
        color = COLORS[name.partition("-")[0]]
        console.print(f"[{color}]{name:>10}[/] ", end="")
        console.print(readable(line), markup=False, soft_wrap=True)

    return log


async def watch(stack: Stack, console: Console) -> None:
    """Never returns: a service that dies is reported and started again, on its own addresses."""
    await asyncio.gather(*(_keep(service, console) for service in stack.services))


async def _keep(service: LocalService, console: Console) -> None:
    backoff_s = FIRST_BACKOFF_S
    while True:
        started = time.monotonic()
        await service.child.wait()
        if time.monotonic() - started >= STEADY_S:
            backoff_s = FIRST_BACKOFF_S
        console.print(f"forerun: {service.child.obituary('')}", style="red", markup=False)
        while True:
            console.print(
                f"forerun: starting {service.name} again in {backoff_s:g} s", style="yellow", markup=False
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
            try:
                await service.start()
            except Unavailable as fault:
                console.print(f"forerun: {fault.message}", style="red", markup=False)
                continue
            console.print(f"forerun: {service.name} is ready again", style="green", markup=False)
            break
