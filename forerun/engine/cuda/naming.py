"""Greedy and seeded tokens named where the logits are, so that eight bytes a row leave the device.

The same functions as `forerun.core.sampling.argmax` and `forerun.core.noise.keyed_draw`: argmax in float32, clocks in
float64, ties to the lower id. Cut laws (top-k, top-p, min-p) are left to the host: they need the vocabulary in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.core.acceptance import UNNAMED
from forerun.core.noise import key_words
from forerun.core.types import Sampler
from forerun.engine.rows import LOGITS

_AT_ONCE = 16  # rows of clocks at a time: each takes some numbers of eight bytes a token
_WORD = 0xFFFFFFFF


class Naming:
    """Names tokens on one device. `masked_ids`: ids inside the vocabulary that name no token."""

    def __init__(self, vocab_size: int, masked_ids: Sequence[int], device: torch.device) -> None:
        self._masked = torch.tensor(list(masked_ids), dtype=torch.int64, device=device)
        self._ids = torch.arange(vocab_size, dtype=torch.int64, device=device)

    def name(
        self, logits: torch.Tensor, samplers: Sequence[Sampler | None], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Token ids of the rows of `logits` (rows, vocab_size), on the host; waits for the device.

        `positions`: the index in the text of each token. LOGITS where the sampler is None or cuts the law, UNNAMED
        where no logit is finite or one is NaN.
        """
        named = np.full(len(logits), LOGITS)
        greedy = [i for i, s in enumerate(samplers) if s and s.sampling.temperature == 0]
        keyed = [
            i for i, s in enumerate(samplers) if s and s.sampling.temperature > 0 and not s.sampling.cuts
        ]
        if len(self._masked):
            logits.index_fill_(1, self._masked, -torch.inf)
        if greedy:
            named[greedy] = _argmax(logits[greedy])[0].cpu().numpy()
        for at in range(0, len(keyed), _AT_ONCE):
            some = keyed[at : at + _AT_ONCE]
            named[some] = (
                self._keyed(logits[some], [samplers[i] for i in some], positions[some]).cpu().numpy()
            )
        return named

    def _keyed(
        self, logits: torch.Tensor, samplers: Sequence[Sampler | None], positions: NDArray[np.int64]
    ) -> torch.Tensor:
        """Whose clock rings first: argmin of E_x * exp((highest - logit_x) / T)."""
        keys = [
            (s.sampling.temperature, *key_words(s.key, int(position)))
            for s, position in zip(samplers, positions, strict=True)
            if s is not None
        ]
        temperatures, first, second = torch.tensor(keys, dtype=torch.float64).to(logits.device).T[:, :, None]
        best, highest = _argmax(logits)
        cells = _mixed((_mixed(self._ids ^ first.long()) + second.long()) & _WORD)
        exponentials = -torch.log1p(-(cells.double() + 0.5) / 2.0**32)
        weights = torch.exp((logits.double() - highest.double()[:, None]) / temperatures)
        return torch.where(best == UNNAMED, best, (exponentials / weights).argmin(dim=1))


def _argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first of the highest of each row, UNNAMED where that is no number; and the highest."""
    highest, best = logits.max(dim=1)
    return torch.where(highest.isfinite(), best, UNNAMED), highest


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """The bijection of `forerun.core.noise`, on 32-bit words in int64."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
