"""How a drafter draws: so that the decider of the same mode accepts as many tokens as it can."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from forerun.core.acceptance import PROPOSER, Decider, decider, draw, generator
from forerun.core.sampling import law, truncate
from forerun.core.types import Law, Mode, Row, Sampler, Sampling


class Proposer(Protocol):
    """Draws a drafter's tokens."""

    sampler: Sampler | None  # with it an engine can name the token itself

    def draw(self, row: Row, position: int) -> tuple[int, Law | None]:
        """Return the token to draft at index `position` and, in rejection mode, the law to ship with it."""


class Foreseeing:
    """Predicts what a decider that reads no draft would settle on the drafter's own logits, with the shared noise."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.sampler = decider.sampler

    def draw(self, row: Row, position: int) -> tuple[int, Law | None]:
        """Return the decider's token."""
        return self._decider.decide(row, position, ())[0], None


class RejectionProposer:
    """Samples from exactly the law it ships: truncated and rounded to float32 first, then drawn from."""

    def __init__(self, sampling: Sampling, rng: np.random.Generator, max_law_tokens: int) -> None:
        self._sampling = sampling
        self._rng = rng
        self._max_law_tokens = max_law_tokens
        self.sampler: Sampler | None = None

    def draw(self, row: Row, position: int) -> tuple[int, Law | None]:  # noqa: ARG002
        """Return a token and the law it was drawn from."""
        if isinstance(row, np.integer):
            raise ValueError("rejection mode needs the drafter's law")  # noqa: TRY004 - the caller's fault
        shipped = truncate(law(row, self._sampling), self._max_law_tokens)
        return draw(shipped, self._rng.random()), shipped


def proposer(
    mode: Mode, sampling: Sampling, noise_key: bytes, entropy: bytes, max_law_tokens: int = 64
) -> Proposer:
    """The drafter's side of a mode. `entropy`: fresh random bytes, used in rejection mode alone."""
    if mode in {Mode.GREEDY, Mode.COUPLED}:
        return Foreseeing(decider(mode, sampling, noise_key, entropy))
    return RejectionProposer(sampling, generator(entropy, PROPOSER), max_law_tokens)
