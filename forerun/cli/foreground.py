"""Runs a command's coroutine so that every way of ending it cleans up."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import TypeVar

import typer
from rich.console import Console

from forerun.cli.exit_status import status_of
from forerun.errors import ForerunError, InternalFault, Unavailable

T = TypeVar("T")

PIPED_WIDTH = 110
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def progress_console() -> Console:
    """Return the console of everything that is not the answer: stderr, so that stdout can be piped.

    Where that is no terminal a line stays one line, however long.
    """
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def answer_console() -> Console:
    """Return the console of what was asked for: stdout, wide enough for tables where nobody's terminal is narrower."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def fail(message: str, status: int = 1) -> typer.Exit:
    """Return the exit to raise, one message said on stderr."""
    print(f"forerun: {message}", file=sys.stderr)
    return typer.Exit(status)


def unanswered(address: str, fault: ForerunError) -> typer.Exit:
    """Return the exit to raise where the gateway at `address` did not answer, or refused to."""
    how = "cannot be used" if isinstance(fault, Unavailable | InternalFault) else "refused"
    return fail(f"the gateway at {address} {how}: {fault.message}")


def run(main: Coroutine[object, object, T]) -> T:
    """Return what `main` returns.

    Ctrl-C, SIGTERM and SIGHUP cancel it, so that its clean-up runs, and exit with 128 + signal; a second one
    ends at once, and the tethered children with it. A ForerunError becomes one message and its `status_of`.
    """
    received: list[signal.Signals] = []

    async def governed() -> T:
        task = asyncio.ensure_future(main)
        loop = asyncio.get_running_loop()

        def end(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()
            for each in ENDING_SIGNALS:
                loop.remove_signal_handler(each)

        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, end, number)
        return await task

    try:
        return asyncio.run(governed())
    except asyncio.CancelledError:
        raise typer.Exit(128 + received[0] if received else 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except ForerunError as fault:
        raise fail(fault.message, status_of(fault)) from fault
    finally:
        main.close()  # interrupted before it was a task, it would be reported as never awaited
