"""Many of the same thing, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def in_parallel(
    items: Sequence[T],
    workers: int,
    one: Callable[[T], Awaitable[None]],
    *,
    on_idle: Callable[[], None] | None = None,
) -> None:
    """`one` has run for every item, `workers` at a time; the first fault ends them all and is raised.

    As one ends the next begins; `on_idle` is called by each worker that finds nothing more to do.
    """
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await one(item)
        if on_idle:
            on_idle()

    tasks = [asyncio.create_task(worker()) for _ in range(min(workers, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
