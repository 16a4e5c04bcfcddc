"""Rotary position embeddings as tables."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from forerun.engine.model_config import ModelConfig, Rope, unsupported

Floats = NDArray[np.float32]


def rope_tables(config: ModelConfig) -> tuple[Floats, Floats]:
    """Cosines and sines, float32, shape (max_context, head_dim / 2).

    Angles are products of float32, as transformers computes them; cosine and sine are taken in float64, so the tables
    are the same in every process.
    """
    frequencies = inverse_frequencies(config.rope, config.head_dim)
    positions = np.arange(config.max_context, dtype=np.float32)
    angles = (positions[:, None] * frequencies[None, :]).astype(np.float64)
    scale = np.float32(config.rope.attention_factor)
    return np.cos(angles).astype(np.float32) * scale, np.sin(angles).astype(np.float32) * scale


def inverse_frequencies(rope: Rope, head_dim: int) -> Floats:
    """One frequency a pair of dimensions, float32, shape (head_dim / 2)."""
    if rope.kind == "longrope" and len(rope.factors) != head_dim // 2:
        raise unsupported(f"{len(rope.factors)} rotary factors for a head of {head_dim}")
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain: Floats = (1.0 / np.power(np.float32(rope.theta), exponents)).astype(np.float32)
    if rope.kind == "linear":
        linear: Floats = (plain / np.float32(rope.factor)).astype(np.float32)
        return linear
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(plain, rope)
    if rope.kind == "longrope":
        stretched: Floats = (plain / np.array(rope.factors, np.float32)).astype(np.float32)
        return stretched
    return plain


def _llama3(plain: Floats, rope: Rope) -> Floats:
    """Long wavelengths divided by the factor, short ones kept, those between blended (Llama 3.1)."""
    wavelengths = 2 * math.pi / plain
    smooth = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    kept = np.clip(smooth, 0.0, 1.0)
    blended: Floats = ((1 - kept) * plain / rope.factor + kept * plain).astype(np.float32)
    return blended


def _yarn(plain: Floats, rope: Rope) -> Floats:
    """Pairs that turn often keep their frequency, those that turn rarely have it divided, the rest are blended."""

    def pair(turns: float) -> float:  # the one that turns so many times within the original context
        return len(plain) * math.log(rope.original_context / (turns * 2 * math.pi)) / math.log(rope.theta)

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(plain) - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(len(plain), dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    blended: Floats = (plain / np.float32(rope.factor) * ramp + plain * (1 - ramp)).astype(np.float32)
    return blended
