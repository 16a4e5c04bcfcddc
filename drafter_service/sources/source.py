"""What the drafting loop knows of a source of guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.core.proposer import Proposer
from forerun.core.types import Law, ModelInfo


@dataclass(frozen=True, slots=True)
class Ask:
    """One session's wish for the next tokens of its branch."""

    key: str  # the session's name in the source
    token_ids: tuple[int, ...]  # settled text, then everything drafted ahead of it
    num_settled: int  # how many of `token_ids` are settled; never shrinks for one key
    length: int  # tokens wanted, at least 1
    proposer: Proposer  # draws a token from logits as the session's mode demands
    branch: int  # changes when the drafted part is torn; the session's own mark


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a source says to one ask: up to `length` tokens.

    `laws`: () or the law of each token. `ends`: nothing more comes after these tokens; none and `ends`:
    nothing to say until the text changes; none without `ends`: still computing, ask again. `delay_s`: how
    long the message is held back (a source that plays a slow network).
    """

    token_ids: tuple[int, ...] = ()
    laws: tuple[Law, ...] = ()
    ends: bool = False
    delay_s: float = 0.0


class Source(Protocol):
    """Guesses for any number of sessions. Used from one event loop; computes elsewhere if it takes long."""

    @property
    def name(self) -> str:
        """Name on the wire, e.g. "ngram" or "model:qwen-0.5b"."""

    @property
    def model(self) -> ModelInfo | None:
        """The model it runs; None: it runs none and fits every vocabulary."""

    @property
    def max_context(self) -> int | None:
        """Longest text it can continue, in tokens; None: any."""

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn]:
        """Return one answer an ask, in order, computed together."""

    async def forget(self, key: str) -> None:
        """Drop what is kept for a session. Unknown keys: no effect."""
