"""The plain answers of an audit, and the file that keeps them for the next one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from forerun.cli.prompts import Prompt
from forerun.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a plain answer depends on, besides its prompt. Equal `numerics`: equal bits."""

    numerics: str
    temperature: float
    seed: int | None
    max_tokens: int


@dataclass(slots=True)
class Reference:
    """Plain answers by prompt, under one set of conditions."""

    conditions: Conditions
    answers: dict[str, list[int]] = field(default_factory=dict)
    prompt_ids: dict[str, list[int]] = field(default_factory=dict)

    def knows(self, prompt: Prompt) -> bool:
        """Return whether the plain answer to this prompt is here."""
        return key(prompt) in self.answers

    def keep(self, prompt: Prompt, prompt_ids: list[int], answer: list[int]) -> None:
        """The plain answer is here."""
        self.prompt_ids[key(prompt)] = prompt_ids
        self.answers[key(prompt)] = answer

    def answer(self, prompt: Prompt) -> list[int]:
        """Return the plain answer's token ids."""
        return self.answers[key(prompt)]

    def texts(self, prompts: Sequence[Prompt]) -> list[tuple[list[int], list[int]]]:
        """Return (prompt ids, answer ids) of each prompt."""
        return [(self.prompt_ids[key(one)], self.answers[key(one)]) for one in prompts]


def key(prompt: Prompt) -> str:
    """Return a name for the prompt's text."""
    return hashlib.blake2b(prompt.text.encode(), digest_size=16).hexdigest()


def load(path: Path, conditions: Conditions) -> Reference:
    """Return what the file holds for these conditions; nothing if it is not there. Raises InvalidRequest."""
    stored = _read(path).get(_label(conditions))
    if stored is None:
        return Reference(conditions)
    return Reference(conditions, stored["answers"], stored["prompt_ids"])


def save(path: Path, reference: Reference) -> None:
    """The file holds the reference beside those of other conditions."""
    content = _read(path)
    content[_label(reference.conditions)] = {"answers": reference.answers, "prompt_ids": reference.prompt_ids}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content))
    partial.replace(path)


def _label(conditions: Conditions) -> str:
    return json.dumps(asdict(conditions), sort_keys=True)


def _read(path: Path) -> dict[str, dict[str, dict[str, list[int]]]]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        raise InvalidRequest(f"cannot read {path}: {fault}", field="reference") from fault
    if not isinstance(content, dict):
        raise InvalidRequest(f"{path} is no reference file", field="reference")
    return content
