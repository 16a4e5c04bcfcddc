"""Answers before the measuring: how long each is by itself, and what a perfect drafter would say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forerun.cli.bench.field import Field
from forerun.cli.bench.jobs import Job, answer_length
from forerun.cli.bench.setups import PLAIN
from forerun.cli.parallel import in_parallel
from forerun.cli.prompts import Prompt

SESSIONS = 8


async def natural_lengths(field: Field, prompts: Sequence[Prompt]) -> dict[Prompt, int]:
    """Return how many tokens the target answers each prompt with, at most `max_tokens`; a few at least."""
    most = field.settings.max_tokens
    said = await plain_answers(field, [Job(prompt, most) for prompt in prompts])
    return {job.prompt: answer_length(len(ids), most) for job, ids in said.items()}


async def plain_answers(field: Field, jobs: Sequence[Job]) -> dict[Job, tuple[int, ...]]:
    """Return the greedy answer to each job up to its natural end, from a verifier of its own that then goes."""
    (scout,) = await field.serve([replace(PLAIN, name="scout")])
    said: dict[Job, tuple[int, ...]] = {}

    async def one(job: Job) -> None:
        said[job] = await scout.natural(job)

    await in_parallel(jobs, SESSIONS, one)
    await field.retire(scout)
    del field.threads["scout"]
    return said


def save_texts(field: Field, said: dict[Job, tuple[int, ...]]) -> Path:
    """Return a file of whole texts, prompt and answer, as the drafter source `replay` reads it."""
    path = field.stack.temporary_folder("replay") / "texts.jsonl"
    with path.open("w") as file:
        for job, ids in said.items():
            prompt_ids = field.tokenizer.chat(job.messages)
            file.write(json.dumps({"prompt_token_ids": prompt_ids, "token_ids": ids}) + "\n")
    return path
