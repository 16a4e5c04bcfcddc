"""Prompt files: a JSON object a line, `{"id", "category", "turns": [first, …]}`; the first turn is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """One chat prompt."""

    prompt_id: str
    category: str
    text: str

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """The conversation to send."""
        return (("user", self.text),)


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """Return the file's prompts, at most `limit`. Raises InvalidRequest, naming the line at fault."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidRequest(f"cannot read {path}: {fault}", field="prompts") from fault
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    prompts = [_prompt(line, f"{path}, line {number}") for number, line in numbered][:limit]
    if not prompts:
        raise InvalidRequest(f"{path} has no prompts", field="prompts")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        row = json.loads(line)
        text = row["turns"][0]
    except (ValueError, KeyError, IndexError, TypeError) as fault:
        raise InvalidRequest(f'{where}: not a JSON object with "turns"', field="prompts") from fault
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"{where}: the first turn is not a text", field="prompts")
    return Prompt(str(row.get("id", "")), str(row.get("category", "")), text)


def one_of_each_category(prompts: list[Prompt]) -> list[Prompt]:
    """Return the first prompt of each category, in the order in which categories appear."""
    first: dict[str, Prompt] = {}
    for prompt in prompts:
        first.setdefault(prompt.category, prompt)
    return list(first.values())
