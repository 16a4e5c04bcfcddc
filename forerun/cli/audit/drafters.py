"""The drafters of an audit, from useless to perfect."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.cli.audit.reference import Reference
from forerun.cli.prompts import Prompt
from forerun.cli.sources import check_source
from forerun.cli.stack import Stack
from forerun.core.types import TokenizerFiles
from forerun.errors import InvalidRequest

RANDOM_LAYERS, RANDOM_HIDDEN = 1, 64
NO_DRAFTER = "none"
OWN_LOOKUP = "lookup"  # the verifier's own
NAMES = frozenset({NO_DRAFTER, OWN_LOOKUP, "random", "target"})
# A fifth of the replayed tokens is wrong; messages come up to a few passes of the target late.
REPLAY_FAULTS = "error=0.2&delay_ms=40&seed=0"


@dataclass(frozen=True, slots=True)
class Material:
    """What drafters are made of."""

    stack: Stack
    model: str
    tokenizer: TokenizerFiles
    vocab_size: int
    plain: Reference


def is_model(drafter: str) -> bool:
    """Return whether this drafter computes, and so needs cores of its own."""
    return drafter in {"random", "target"} or drafter.startswith("model:")


async def check_drafter(drafter: str) -> None:
    """The name stands for a drafter. Raises InvalidRequest or NotFound."""
    name, _, faults = drafter.partition("?")
    if name == "replay":  # its texts are the plain answers, which are not there yet
        await check_source(f"replay:{os.devnull}?{faults}")
    elif drafter not in NAMES:
        try:
            await check_source(drafter)
        except InvalidRequest as fault:
            raise InvalidRequest(
                f"--drafter {drafter}: {fault.message}, or one of {', '.join((*sorted(NAMES), 'replay'))}",
                reason=fault.reason,
                field="drafter",
            ) from fault


async def source_of(drafter: str, material: Material, prompts: Sequence[Prompt]) -> str:
    """Return the drafter source that a name stands for; any other name is a source already."""
    if drafter == "target":
        return f"model:{material.model}"
    if drafter == "random":
        return f"model:{await asyncio.to_thread(_save_random_model, material)}"
    name, _, faults = drafter.partition("?")
    if name == "replay":
        return f"replay:{_save_texts(material, prompts)}?{faults or REPLAY_FAULTS}"
    return drafter


def _save_random_model(material: Material) -> str:
    from forerun.engine.random_model import save_random_model

    folder = material.stack.temporary_folder("random")
    save_random_model(
        folder,
        like=material.tokenizer,
        vocab_size=material.vocab_size,
        layers=RANDOM_LAYERS,
        hidden=RANDOM_HIDDEN,
        seed=0,
    )
    return str(folder)


def _save_texts(material: Material, prompts: Sequence[Prompt]) -> Path:
    path = material.stack.temporary_folder("replay") / "texts.jsonl"
    with path.open("w") as file:
        for prompt_ids, answer in material.plain.texts(prompts):
            file.write(json.dumps({"token_ids": prompt_ids + answer}) + "\n")
    return path
