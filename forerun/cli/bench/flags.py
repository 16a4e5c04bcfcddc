"""Flags that all benches take, as typer annotations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

import forerun
from forerun.errors import InvalidRequest

OWN_PROMPTS = Path(forerun.__file__).parents[1] / "benchmarks" / "prompts.jsonl"

Prompts = Annotated[Path, typer.Option(help="JSON lines with turns; the first turn of each is asked.")]
Categories = Annotated[
    list[str] | None, typer.Option("--category", help="Ask only prompts of this category; repeatable.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Ask only the first prompts, categories in turn.")]
MaxTokens = Annotated[
    int, typer.Option(min=2, help="Most tokens an answer; one that ends sooner is asked for that length.")
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, help="Times everything is run.")]
SetUps = Annotated[
    list[str] | None,
    typer.Option("--setup", help="Compare only this set-up with plain; repeatable (default: all)."),
]
DrafterModel = Annotated[
    str | None, typer.Option(help="A smaller model of the target's vocabulary that drafts too.")
]
RoundTrip = Annotated[
    float, typer.Option("--round-trip-ms", min=0, help="Network between remote drafters and the verifier.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the JSON and the picture.")]
DEFAULT_OUT = Path("results")


def numbers(text: str, *, flag: str, least: float, most: float) -> list[float]:
    """Return the numbers of "1,8,32", in order and each once. Raises InvalidRequest."""
    try:
        found = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = []
    if not found or not all(least <= one <= most and not math.isnan(one) for one in found):
        raise InvalidRequest(
            f"{flag} takes numbers from {least:g} to {most:g} with commas between, not {text!r}", field=flag
        )
    return found


def whole_numbers(text: str, *, flag: str, least: int, most: int) -> list[int]:
    """Return the whole numbers of "1,8,32". Raises InvalidRequest."""
    found = numbers(text, flag=flag, least=least, most=most)
    if any(one != int(one) for one in found):
        raise InvalidRequest(f"{flag} takes whole numbers, not {text!r}", field=flag)
    return [int(one) for one in found]
