"""From a `--source` flag to a source."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from drafter_service.sources.faulty import Slow, Stalling
from drafter_service.sources.in_turns import InTurns
from drafter_service.sources.ngram import NgramSource
from drafter_service.sources.replay import replay_from
from drafter_service.sources.source import Source
from forerun.engine.interface import Engine
from forerun.errors import InvalidRequest


@asynccontextmanager
async def open_source(spec: str, load_engine: Callable[[str], Engine]) -> AsyncIterator[Source]:
    """The source that "ngram", "model:SPEC" or "replay:FILE" names, for as long as the block runs.

    For comparisons, "sync:SOURCE" does not draft ahead, "slow:MS:SOURCE" takes MS milliseconds a message, and
    "stall:SOURCE" falls silent after its first. `load_engine` is called with SPEC on the engine's own thread.
    Raises InvalidRequest for another spec.
    """
    kind, _, rest = spec.partition(":")
    if kind == "sync":
        async with open_source(rest, load_engine) as source:
            yield InTurns(source)
    elif kind == "slow":
        ms, _, inner = rest.partition(":")
        message_s = _milliseconds(ms) / 1000
        async with open_source(inner, load_engine) as source:
            yield Slow(source, message_s)
    elif kind == "stall":
        async with open_source(rest, load_engine) as source:
            yield Stalling(source)
    elif spec == "ngram":
        yield NgramSource()
    elif kind == "replay" and rest:
        yield replay_from(rest)
    elif kind == "model" and rest:
        # Imported only here: look-up drafters run where no engine is installed.
        from drafter_service.sources.model import ModelSource  # noqa: PLC0415
        from forerun.engine.executor import EngineThread  # noqa: PLC0415

        thread = EngineThread()
        try:
            yield ModelSource(await thread.run(load_engine, rest), thread)
        finally:
            thread.close()
    else:
        raise InvalidRequest(
            f"{spec!r} is no source; give ngram, model:SPEC or replay:FILE",
            reason="BAD_SOURCE",
            field="source",
        )


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InvalidRequest(
            f"slow: {text!r} is no number of milliseconds", reason="BAD_SOURCE", field="source"
        )
    return value
