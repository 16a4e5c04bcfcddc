"""Models of random weights, as large as the GPU takes, and how much of them `gpu_check` runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from forerun.core.types import Exactness, ModelInfo
from forerun.engine.cuda.device_weights import DeviceWeights, random_weights
from forerun.engine.cuda.forward import TorchForward
from forerun.engine.cuda.load import choose_attention, device_blocks
from forerun.engine.model_config import ModelConfig, Rope
from forerun.engine.paged_engine import PagedEngine

LARGE_NEEDS = 26 << 30  # bytes of memory: weights, pool, and what is between

Report = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """What is run: a target, a drafter, and how much of it."""

    target: ModelConfig
    drafter: ModelConfig
    dtype: torch.dtype
    pool_bytes: int
    kv: int  # positions a session has when passes are timed
    rounds: int
    tokens: int
    sessions: tuple[int, ...]


def llama(
    layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocab: int, context: int
) -> ModelConfig:
    """A Llama's shapes."""
    rope = Rope(500000.0)
    size = hidden // heads
    return ModelConfig(
        "llama", layers, hidden, heads, kv_heads, size, inner, vocab, 1e-5, False, rope, context
    )


VOCAB = 128256
LARGE = Size(
    target=llama(32, 4096, 32, 8, 14336, VOCAB, 8192),  # Llama 3 8B's
    drafter=llama(4, 1024, 16, 4, 4096, VOCAB, 8192),
    dtype=torch.bfloat16,
    pool_bytes=4 << 30,
    kv=512,
    rounds=20,
    tokens=96,
    sessions=(1, 8),
)
SMALL = replace(LARGE, target=llama(16, 2048, 32, 8, 8192, VOCAB, 8192), pool_bytes=2 << 30)  # Llama 3.2 1B's
TINY = Size(
    target=llama(2, 64, 4, 2, 128, 512, 512),
    drafter=llama(1, 32, 2, 1, 64, 512, 512),
    dtype=torch.float32,
    pool_bytes=4 << 20,
    kv=40,
    rounds=2,
    tokens=24,
    sessions=(1, 3),
)


@dataclass
class Loaded:
    """One model on the device."""

    engine: PagedEngine
    forward: TorchForward
    weights: DeviceWeights
    facts: Report


def choose_size(name: str, device: torch.device) -> Size:
    """The size named; by default the larger one that fits."""
    if name == "auto":
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
        name = "large" if free >= LARGE_NEEDS else "small" if free else "tiny"
    return {"large": LARGE, "small": SMALL, "tiny": TINY}[name]


def load(config: ModelConfig, size: Size, device: torch.device) -> Loaded:
    """A model of random weights, ready to run."""
    started = time.perf_counter()
    weights = random_weights(config, size.dtype, device, seed=config.num_layers)
    num_blocks = device_blocks(config, size.dtype, device, size.pool_bytes)
    forward = TorchForward(
        config,
        weights,
        choose_attention(config, size.dtype, device),
        vocab_size=config.vocab_width,
        num_blocks=num_blocks,
        progress=lambda _: None,
    )
    model = ModelInfo("random", "", "", config.vocab_width, config.max_context, "", Exactness.NUMERIC, ())
    facts = {
        "build": forward.build,
        "buckets": list(forward.buckets),
        "layers": config.num_layers,
        "hidden": config.hidden,
        "product_bytes": weights.product_bytes,
        "ready_s": round(time.perf_counter() - started, 1),
    }
    return Loaded(PagedEngine(model, forward, num_blocks), forward, weights, facts)
