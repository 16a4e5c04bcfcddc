"""What our stack is measured against, each in one process with the same weights and the same prompt ids."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from forerun.engine.convert import ensure_smollm2

Timed = tuple[tuple[int, ...], float, float]  # answer ids, seconds, seconds to the first token


TRIAL_PROMPT, TRIAL_TOKENS = tuple(range(100, 132)), 16


class Baseline(Protocol):
    """One way of generating greedily, without a service."""

    threads: int

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Timed:
        """Return the answer, the seconds it took, and those until its first token."""


class TransformersGenerate:
    """`generate` of transformers, greedy, with its own key-value cache."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model: Any = AutoModelForCausalLM.from_pretrained(_weights(model), dtype=getattr(torch, dtype))
        self.threads = self._fastest({threads, max(1, threads // 2)})

    def _fastest(self, counts: set[int]) -> int:
        """Return the thread count with the best short answer, and keep to it: threads that wait for each other spin."""
        import torch

        taken = {}
        for threads in counts:
            torch.set_num_threads(threads)
            self.answer(TRIAL_PROMPT, 2)
            taken[threads] = self.answer(TRIAL_PROMPT, TRIAL_TOKENS)[1]
        best = min(taken, key=taken.__getitem__)
        torch.set_num_threads(best)
        return best

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Timed:
        import torch

        ids = torch.tensor([list(prompt_ids)])
        watch = _FirstToken()
        started = time.perf_counter()
        with torch.inference_mode():
            said = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                streamer=watch,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - started
        return tuple(said[0, ids.shape[1] :].tolist()), seconds, watch.at - started


class _FirstToken:
    """A streamer, as transformers calls it: first with the prompt, then with each token."""

    def __init__(self) -> None:
        self.at = 0.0
        self._calls = 0

    def put(self, value: Any) -> None:
        del value
        self._calls += 1
        if self._calls == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        """Nothing is held back."""


class BareEngine:
    """Forerun's engine in a loop of one session, without services, scheduler or store."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        from forerun.engine.load import load_engine

        self._engine, _ = load_engine(model, dtype=dtype, threads=threads)
        self.threads = threads
        self._number = 0

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Timed:
        from forerun.core.sampling import argmax
        from forerun.engine.interface import Segment

        self._number += 1
        session, ids = f"bare-{self._number}", list(prompt_ids)
        said: list[int] = []
        started = time.perf_counter()
        first = 0.0
        start = self._engine.open(session, ids)
        while len(said) < max_tokens and (not said or said[-1] not in self._engine.model.end_token_ids):
            length = len(ids) + len(said)
            fed = (ids + said)[start:length]
            (logits,) = self._engine.forward([Segment(session, start, fed, 1)])
            start = length
            said.append(argmax(logits[-1]))
            first = first or time.perf_counter() - started
        seconds = time.perf_counter() - started
        self._engine.close(session)
        return tuple(said), seconds, first


def _weights(model: str) -> Path | str:
    return ensure_smollm2() if model == "smollm2" else model
