"""`generate` of transformers, greedy, with its own key-value cache; and with its prompt look-up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from forerun.cli.bench.baseline import Ask, Done, Said
from forerun.engine.convert import silent
from forerun.engine.load import find_folder

TRIAL_PROMPT, TRIAL_TOKENS = 32, 16  # lengths of the answer by which the number of threads is chosen
PAD = 0  # any token: it is masked
LOOKUP_TOKENS = 10  # what its documentation shows


def load_model(model: str, dtype: str) -> Any:
    """Return the target as transformers loads it, without end tokens: answers have the length asked for."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = find_folder(model, silent)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    loaded.generation_config.eos_token_id = None
    return loaded


class TransformersGenerate:
    """Answers in batches of equal start, shorter prompts padded on the left, until the longest is there.

    All tokens of a batch count, those past the length asked for too: the kindest count for a batch that waits
    for its longest answer. With `prompt_lookup` it drafts from the text, one answer at a time.
    """

    def __init__(self, model: Any, threads: int, *, prompt_lookup: bool = False) -> None:
        self._model = model
        self._extra = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if prompt_lookup else {}
        self.most_sessions = 1 if prompt_lookup else None
        self.threads = self._fastest({threads, max(1, threads // 2)})

    def answers(self, asks: Sequence[Ask], sessions: int) -> Done:
        batches = [asks[start : start + sessions] for start in range(0, len(asks), sessions)]
        started = time.perf_counter()
        said = [one for batch in batches for one in self._batch(batch)]
        seconds = time.perf_counter() - started
        tokens = sum(len(batch) * max(one.num_tokens for one in batch) for batch in batches)
        return Done(tuple(said), tokens, seconds)

    def _batch(self, asks: Sequence[Ask]) -> list[Said]:
        import torch

        torch.set_num_threads(self.threads)  # the other baselines of this process have numbers of their own
        width = max(len(one.prompt_ids) for one in asks)
        gaps = [width - len(one.prompt_ids) for one in asks]
        ids = torch.tensor([[PAD] * gap + list(one.prompt_ids) for gap, one in zip(gaps, asks, strict=True)])
        mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps])
        watch = _FirstToken()
        started = time.perf_counter()
        with torch.inference_mode():
            said = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=max(one.num_tokens for one in asks),
                do_sample=False, streamer=watch, pad_token_id=PAD, **self._extra,
            )  # fmt: skip
        seconds = time.perf_counter() - started
        first = watch.at - started
        rows = said[:, width:].tolist()
        return [
            Said(tuple(row[: one.num_tokens]), seconds, first) for row, one in zip(rows, asks, strict=True)
        ]

    def _fastest(self, counts: set[int]) -> int:
        """Return the thread count with the best short answer: threads that wait for each other spin."""
        prompt = tuple(index % self._model.config.vocab_size for index in range(TRIAL_PROMPT))
        taken = {}
        for self.threads in counts:
            self._batch([Ask(prompt, 2)])
            taken[self.threads] = self._batch([Ask(prompt, TRIAL_TOKENS)])[0].seconds
        return min(taken, key=taken.__getitem__)


class _FirstToken:
    """A streamer, as transformers calls it: first with the prompts, then with each token."""

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
