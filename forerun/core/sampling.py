"""From logits to laws: temperature, then top-k, top-p, min-p, in this order, ties to the lower id everywhere.

The order of the vocabulary is by logit, highest first, then by id. It is total, so every cut is exact: top-k
keeps exactly k, top-p adds probabilities in that order in float64, and target and drafter agree to the last
token.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from forerun.core.types import Law, Logits, Probs, Sampling
from forerun.errors import InternalFault


def argmax(logits: Logits) -> int:
    """The id of the highest logit, the lower id on ties.

    Raises InternalFault where no logit is finite or one is NaN.
    """
    best = int(np.argmax(logits))
    if not math.isfinite(logits[best]):
        raise InternalFault("the model gave a logit that is not a number", reason="BAD_LOGITS")
    return best


def kept(logits: Logits, s: Sampling) -> NDArray[np.int64]:
    """The ids that keep a positive probability, by logit descending, then id; int64, at least one.

    Padded (-inf) logits and tokens whose probability is zero in float64 are never kept. Raises InternalFault
    as argmax.
    """
    token_ids, _ = weights(logits, s)
    return _in_order(logits, token_ids)


def law(logits: Logits, s: Sampling) -> Law:
    """The law of the next token, float64, summing to 1 up to rounding; ids in no promised order.

    Temperature 0 is the one-hot law at argmax. Raises InternalFault as argmax.
    """
    token_ids, e = weights(logits, s)
    return Law(token_ids, e / e.sum())


def weights(logits: Logits, s: Sampling) -> tuple[NDArray[np.int64], Probs]:
    """The kept ids, in no promised order, and exp((logit - highest) / T) of each, float64 in (0, 1].

    Raises InternalFault as argmax.
    """
    best = argmax(logits)
    if s.temperature == 0:
        return np.array([best]), np.ones(1)
    ordered = 0 < s.top_k < len(logits)
    token_ids = _first(logits, s.top_k) if ordered else None
    e = _exp(logits if token_ids is None else logits[token_ids], logits[best], s.temperature)
    if 0 < s.top_p < 1:
        token_ids, e = _nucleus(logits, token_ids, e, s.top_p)
    positive = e >= s.min_p if s.min_p > 0 else e > 0
    if positive.all():
        return np.arange(len(e)) if token_ids is None else token_ids, e
    if token_ids is None:
        token_ids = np.flatnonzero(positive)
        return token_ids, e[token_ids]
    return token_ids[positive], e[positive]


def weights_of(
    logits: Logits, token_ids: NDArray[np.int64], temperature: float
) -> tuple[NDArray[np.int64], Probs]:
    """`weights` with no other cut, for some ids only; the same bits. `temperature` > 0."""
    e = _exp(logits[token_ids], logits[argmax(logits)], temperature)
    return token_ids[e > 0], e[e > 0]


def truncate(full: Law, m: int) -> Law:
    """The `m` most probable tokens of a law (lower id on ties), renormalised to float32 values.

    This is what a drafter samples from and ships; the sum is 1 within float32 rounding, so both sides divide
    by it.
    """
    token_ids, probs = full.token_ids, full.probs
    if len(probs) > m:
        border = np.partition(probs, len(probs) - m)[len(probs) - m]
        above = np.flatnonzero(probs > border)
        level = np.flatnonzero(probs == border)
        level = level[np.argsort(token_ids[level])][: m - len(above)]
        top = np.concatenate((above, level))
        token_ids, probs = token_ids[top], probs[top]
    rounded = (probs / probs.sum()).astype(np.float32).astype(np.float64)
    positive = rounded > 0
    return Law(token_ids[positive], rounded[positive])


def _exp(logits: Logits, highest: np.float32, temperature: float) -> Probs:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp((logits.astype(np.float64) - float(highest)) / temperature)


def _nucleus(
    logits: Logits, token_ids: NDArray[np.int64] | None, e: Probs, top_p: float
) -> tuple[NDArray[np.int64], Probs]:
    """Keep the shortest prefix, in vocabulary order, whose probability reaches `top_p`."""
    wanted = top_p * e.sum()
    if token_ids is None:
        # Tokens below this weight weigh less than 1 - top_p together: the prefix lies above it. Half of it, so
        # that rounding cannot matter.
        token_ids = np.flatnonzero(e >= 0.5 * (1 - top_p) * e.sum() / len(e))
        token_ids = _in_order(logits, token_ids)
        e = e[token_ids]
    num_kept = 1 + int(np.searchsorted(np.cumsum(e[:-1]), wanted))
    return token_ids[:num_kept], e[:num_kept]


def _first(logits: Logits, k: int) -> NDArray[np.int64]:
    """The first `k` ids in vocabulary order. Sorts nothing but those."""
    if k < len(logits):
        border = np.partition(logits, len(logits) - k)[len(logits) - k]
        above = np.flatnonzero(logits > border)
        level = np.flatnonzero(logits == border)[: k - len(above)]  # ascending: the lower ids
        token_ids = np.concatenate((above, level))
    else:
        token_ids = np.arange(len(logits))
    return _in_order(logits, token_ids)


def _in_order(logits: Logits, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """The given ids by logit descending, then id."""
    # One integer a token: the float's bits made to fall where the float rises, then the id. Sorting integers
    # is several times faster than a two-key sort. Adding 0.0 turns -0.0 into 0.0: the two zeros tie.
    bits = (logits[token_ids] + np.float32(0)).view(np.uint32)
    falling = np.where(bits >> 31, bits, ~bits & np.uint32(0x7FFFFFFF))
    keys = (falling.astype(np.uint64) << np.uint64(32)) | token_ids.astype(np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
