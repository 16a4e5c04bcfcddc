"""What is seen while a stack comes up."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from forerun.cli.launch import log_entry
from forerun.cli.model import converted
from forerun.cli.sources import check_model, check_source
from forerun.cli.stack import LocalService, Stack
from forerun.engine.cache_folder import cache_folder


async def start(stack: Stack, services: Sequence[LocalService], console: Console) -> None:
    """These services run and are ready; a line each shows what is still loading. Raises Unavailable."""
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        lines = {service.name: progress.add_task(f"{service.name} starts", total=1) for service in services}

        def ready(service: LocalService) -> None:
            progress.update(lines[service.name], completed=1, description=f"{service.name} is ready")

        def loading(name: str, line: str) -> None:
            entry = log_entry(line)
            if entry and entry["event"] == "loading":
                what, percent = entry.get("what", ""), entry.get("percent", 0)
                progress.update(
                    lines[name], completed=percent / 100, description=f"{name}: {what} {percent} %"
                )

        for service in services:
            service.child.listeners.append(loading)
        try:
            await stack.start(services, on_ready=ready)
        finally:
            for service in services:
                service.child.listeners.remove(loading)


async def start_local(
    stack: Stack, sources: Sequence[str], console: Console, *, gateway_flags: Sequence[str] = ()
) -> LocalService:
    """Return the gateway of a private stack that has started: store, verifier, a drafter for each source."""
    await prepare(stack.model, sources, console)
    store, verifier = stack.add_store(), stack.add_verifier()
    drafters = [stack.add_drafter(source) for source in sources]
    await start(stack, [store, verifier, *drafters], console)
    gateway = stack.add_gateway(store.address, [verifier], drafters, *gateway_flags)
    await start(stack, [gateway], console)
    return gateway


async def prepare(model: str, sources: Sequence[str], console: Console) -> None:
    """The model and the drafters' sources may be started; the packaged model is converted if it is one of them.

    Raises InvalidRequest for what is no source or no model, and for a cache that cannot be kept; NotFound where the
    packaged model is not installed.
    """
    cache_folder()  # every verifier's; refused now rather than by the first of them
    check_model(model)
    for source in sources:
        await check_source(source)
    if model == "smollm2":
        converted(console)
