"""Known answers, replayed with errors and delays: a drafter whose every fault an audit can count on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from drafter_service.sources.source import Ask, Drawn
from forerun.core.types import ModelInfo
from forerun.errors import InvalidRequest

_SETTINGS = {"error": 0.0, "delay_ms": 0.0, "seed": 0.0}


@dataclass(frozen=True, slots=True)
class Faults:
    """How the replay goes wrong; all chance comes from `seed`."""

    error_rate: float = 0.0  # probability of each token to be another one
    delay_ms: float = 0.0  # each message comes late by up to this, uniformly
    seed: int = 0


class ReplaySource:
    """Drafts what a file of known texts says comes next, whatever the session's own tokens became.

    A session follows the text that has most of its first tokens. A wrong token is a random other one of the
    file's; after it the replay goes on by position, right again.
    """

    name = "replay"
    model: ModelInfo | None = None
    max_context: int | None = None

    def __init__(self, texts: Sequence[Sequence[int]], faults: Faults) -> None:
        self._texts = [list(text) for text in texts]
        self._ids = sorted({token_id for text in texts for token_id in text})
        self._faults = faults
        self._random = random.Random(faults.seed)
        self._followed: dict[str, list[int]] = {}

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn]:
        """Return the next tokens of each session's text, some of them wrong, the message some time late."""
        return [self._replay(ask) for ask in asks]

    async def forget(self, key: str) -> None:
        """Drop which text the session follows."""
        self._followed.pop(key, None)

    def _replay(self, ask: Ask) -> Drawn:
        text = self._followed.get(ask.key)
        if text is None:
            settled = ask.token_ids[: ask.num_settled]
            text = max(self._texts, key=lambda one: _agreement(one, settled), default=[])
            self._followed[ask.key] = text
        here = len(ask.token_ids)
        tokens = tuple(self._spoilt(token_id) for token_id in text[here : here + ask.length])
        delay_s = self._random.uniform(0, self._faults.delay_ms) / 1000
        return Drawn(tokens, ends=len(tokens) < ask.length, delay_s=delay_s)

    def _spoilt(self, token_id: int) -> int:
        if len(self._ids) < 2 or self._random.random() >= self._faults.error_rate:
            return token_id
        other = token_id
        while other == token_id:
            other = self._random.choice(self._ids)
        return other


def replay_from(spec: str) -> ReplaySource:
    """The source of "FILE" or "FILE?error=0.2&delay_ms=30&seed=1".

    The file has one JSON object a line: `token_ids`, after `prompt_token_ids` if that is given. Raises
    InvalidRequest for a file that cannot be read so and for settings out of range.
    """
    path, _, query = spec.partition("?")
    return ReplaySource(_read(Path(path)), _faults(query))


def _agreement(text: Sequence[int], settled: Sequence[int]) -> int:
    pairs = enumerate(zip(text, settled, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(settled)))


def _read(path: Path) -> list[list[int]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", reason="BAD_REPLAY", field="source") from error
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            texts.append([int(i) for i in (*entry.get("prompt_token_ids", ()), *entry["token_ids"])])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidRequest(
                f"{path}, line {number}: not an object with token_ids", reason="BAD_REPLAY", field="source"
            ) from error
    return texts


def _faults(query: str) -> Faults:
    given = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    try:
        values = _SETTINGS | {name: float(value) for name, value in given.items()}
    except ValueError as error:
        raise InvalidRequest(f"replay: {error}", reason="BAD_REPLAY", field="source") from error
    unknown = ", ".join(values.keys() - _SETTINGS.keys())
    if unknown or not (0 <= values["error"] <= 1 and 0 <= values["delay_ms"] < float("inf")):
        raise InvalidRequest(
            f"replay: {unknown} is no setting" if unknown else "replay: error is 0 to 1, delay_ms at least 0",
            reason="BAD_REPLAY",
            field="source",
        )
    return Faults(values["error"], values["delay_ms"], int(values["seed"]))
