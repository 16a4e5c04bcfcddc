"""From a `--source` flag to a source."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from drafter_service.sources.ngram import NgramSource
from drafter_service.sources.replay import replay_from
from drafter_service.sources.source import Source
from forerun.engine.interface import Engine
from forerun.errors import InvalidRequest


@asynccontextmanager
async def open_source(spec: str, load_engine: Callable[[str], Engine]) -> AsyncIterator[Source]:
    """The source that "ngram", "model:SPEC" or "replay:FILE" names, for as long as the block runs.

    `load_engine` is called with SPEC on the engine's own thread. Raises InvalidRequest for another spec.
    """
    kind, _, rest = spec.partition(":")
    if spec == "ngram":
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
