"""llama.cpp through llama-cpp-python, where that is installed and the target is a GGUF file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from forerun.cli.bench.baseline import Ask, Done, Said
from forerun.engine.convert import SMOLLM2_FILE, SMOLLM2_PACKAGE


def why_not(model: str) -> str | None:
    """Return why llama.cpp cannot run this target here; None if it can."""
    if find_spec("llama_cpp") is None:
        return "llama-cpp-python is not installed"
    if gguf_file(model) is None:
        return f"{model} is no GGUF file"
    return None


def gguf_file(model: str) -> Path | None:
    """Return the target's GGUF file; None if it has none. The weights stay quantised as they are in it."""
    if model == "smollm2":
        package = find_spec(SMOLLM2_PACKAGE)
        return Path(package.origin).with_name(SMOLLM2_FILE) if package and package.origin else None
    return Path(model) if model.endswith(".gguf") else None


class LlamaCpp:
    """Greedy answers, one at a time: the Python package has no batches of separate requests."""

    most_sessions: int | None = 1

    def __init__(self, model: str, threads: int) -> None:
        self.threads = threads
        self._llama: Any = import_module("llama_cpp").Llama(
            str(gguf_file(model)), n_ctx=0, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def answers(self, asks: Sequence[Ask], sessions: int) -> Done:
        del sessions
        started = time.perf_counter()
        said = [self._answer(ask) for ask in asks]
        return Done(tuple(said), sum(one.num_tokens for one in asks), time.perf_counter() - started)

    def _answer(self, ask: Ask) -> Said:
        started, first, said = time.perf_counter(), 0.0, []
        for token in islice(
            self._llama.generate(list(ask.prompt_ids), temp=0.0, repeat_penalty=1.0), ask.num_tokens
        ):
            first = first or time.perf_counter() - started
            said.append(token)
        return Said(tuple(said), time.perf_counter() - started, first)
