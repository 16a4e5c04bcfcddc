"""Rotary position embeddings as tables."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from forerun.engine.model_config import ModelConfig, Rope

Floats = NDArray[np.float32]


def rope_tables(config: ModelConfig) -> tuple[Floats, Floats]:
    """Cosines and sines, float32, shape (max_context, head_dim / 2).

    Angles are products of float32, as transformers computes them; cosine and sine are taken in float64, so the tables
    are the same in every process.
    """
    frequencies = inverse_frequencies(config.rope, config.head_dim)
    positions = np.arange(config.max_context, dtype=np.float32)
    angles = (positions[:, None] * frequencies[None, :]).astype(np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def inverse_frequencies(rope: Rope, head_dim: int) -> Floats:
    """One frequency a pair of dimensions, float32, shape (head_dim / 2)."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain: Floats = (1.0 / np.power(np.float32(rope.theta), exponents)).astype(np.float32)
    if rope.kind == "linear":
        linear: Floats = (plain / np.float32(rope.factor)).astype(np.float32)
        return linear
    if rope.kind == "llama3":
        return _llama3(plain, rope)
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
