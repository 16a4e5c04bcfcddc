"""Noise that target and drafter share: a pure function of key, position and token id.

Coupled mode emits the token whose exponential clock rings first (Gumbel-max with shared noise, Daliri et al.
2024, arXiv 2408.07978): x rings at E_x / p(x), with E_x of mean 1, so it is first with probability p(x). The
drafter, with the same clocks and its own logits, guesses right as often as the two laws agree.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.sampling import argmax, weights, weights_of
from forerun.core.types import Logits, Probs, Sampling

KEY_BYTES = 32

_COARSE_FROM = 1e-3  # temperature from which float32 exponents are good enough to leave tokens out


def noise_key(seed: int, prompt_ids: Sequence[int]) -> bytes:
    """The key of a session: BLAKE2b, 32 bytes, over the seed (little-endian u64) and prompt ids (u32)."""
    packed = struct.pack("<Q", seed) + np.asarray(prompt_ids, dtype="<u4").tobytes()
    return hashlib.blake2b(packed, digest_size=KEY_BYTES).digest()


def exponentials(key: bytes, position: int, token_ids: NDArray[np.int64]) -> Probs:
    """Independent exponential variables of mean 1, one a token id; float64, shape of `token_ids`, all > 0.

    `position` counts from the first prompt token and is the index of the token to be drawn. u is the centre
    of one of 2^32 cells of (0, 1), so E = -log1p(-u) lies between 1.2e-10 and 22.9.
    """
    return -np.log1p(-uniforms(key, position, token_ids))


def uniforms(key: bytes, position: int, token_ids: NDArray[np.int64]) -> Probs:
    """The uniform variables behind `exponentials`; float64 in (0, 1)."""
    return (_cells(key, position, token_ids).astype(np.float64) + 0.5) / 2.0**32


def keyed_draw(logits: Logits, s: Sampling, key: bytes, position: int) -> int:
    """The token of the law of `logits` that the noise at `position` draws; the lower id on ties.

    A function of its arguments alone: argmin over the kept tokens of E_x * exp((highest - logit_x) / T).
    Raises InternalFault as sampling.argmax.
    """
    if s.temperature < _COARSE_FROM or s.cuts:
        token_ids, e = weights(logits, s)
    else:
        token_ids = _able(logits, s.temperature, key, position)
        token_ids, e = weights_of(logits, token_ids, s.temperature)
    times = exponentials(key, position, token_ids) / e
    return int(token_ids[times == times.min()].min())


def key_words(key: bytes, position: int) -> tuple[int, int]:
    """The two 32-bit words from which the noise at a position grows."""
    words = hashlib.blake2b(struct.pack("<Q", position), digest_size=8, key=key).digest()
    return int.from_bytes(words[:4], "little"), int.from_bytes(words[4:], "little")


def _able(logits: Logits, temperature: float, key: bytes, position: int) -> NDArray[np.int64]:
    """The tokens that can still win, found in float32.

    E >= u, and the winner rings no later than the most probable token, whose weight is 1: a token whose u
    exceeds that time times its own weight cannot win. The margin covers float32's rounding: the exponent is
    off by less than 1e-4 wherever the weight is not far below every u.
    """
    best = argmax(logits)
    latest = exponentials(key, position, np.array([best]))[0]
    cells = _cells(key, position, np.arange(len(logits), dtype=np.uint32))
    with np.errstate(over="ignore", under="ignore"):
        e = np.exp((logits - logits[best]) * np.float32(1 / temperature))
    return np.flatnonzero(cells.astype(np.float32) <= np.float32(latest * 1.01 * 2.0**32) * e)


def _cells(key: bytes, position: int, token_ids: NDArray[Any]) -> NDArray[np.uint32]:
    """Which of the 2^32 cells of (0, 1) each token's u is the centre of."""
    first, second = key_words(key, position)
    x = token_ids.astype(np.uint32)
    x ^= np.uint32(first)
    _mix(x)
    x += np.uint32(second)
    _mix(x)
    return x


def _mix(x: NDArray[np.uint32]) -> None:
    """Apply a 32-bit bijection in place whose every output bit depends on every input bit (lowbias32)."""
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
