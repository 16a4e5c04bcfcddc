"""From a model folder to its forward on a device of torch's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from forerun.engine.cuda.attention import Attention, GatheredAttention
from forerun.engine.cuda.attention_check import difference
from forerun.engine.cuda.device_weights import read_weights
from forerun.engine.cuda.forward import BUCKETS, TorchForward, block_bytes, prepare_torch
from forerun.engine.model_config import ModelConfig
from forerun.engine.pool_size import MOST_BLOCKS, blocks_in, pool_blocks
from forerun.errors import InvalidRequest

log = logging.getLogger(__name__)

WORKSPACE_BYTES = 1 << 30  # of a GPU's memory, left for what a pass computes between
POOL_SHARE = 0.8  # of what is free beside weights and workspace, for the KV pool
_DIFFERENCE = {
    torch.float32: 1e-4,
    torch.bfloat16: 2e-2,
}  # between two forms of attention over values of size 1

Progress = Callable[[str, float], None]


def load_torch_forward(
    folder: Path,
    config: ModelConfig,
    *,
    vocab_size: int,
    dtype: torch.dtype,
    device: torch.device,
    pool_bytes: int | None,
    masked_ids: Sequence[int] = (),
    progress: Progress,
) -> tuple[TorchForward, int]:
    """The folder's model on `device`, ready to run, and the number of its KV blocks.

    Raises InvalidRequest for what the readers refuse, and for a device that has no room for weights and one context.
    """
    try:
        weights = read_weights(folder, config, dtype, device, lambda done: progress("loading weights", done))
        num_blocks = device_blocks(config, dtype, device, pool_bytes)
        forward = TorchForward(
            config,
            weights,
            choose_attention(config, dtype, device),
            vocab_size=vocab_size,
            masked_ids=masked_ids,
            num_blocks=num_blocks,
            progress=lambda done: progress("preparing passes", done),
        )
    except torch.OutOfMemoryError as error:
        raise InvalidRequest(
            f"the GPU has no room for {folder.name}: {error}", field="model", reason="NO_MEMORY"
        ) from error
    return forward, num_blocks


def device_blocks(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, pool_bytes: int | None
) -> int:
    """KV blocks for a device on which the weights are: what `pool_bytes` holds, by default most of what is free."""
    size = block_bytes(config, dtype)
    if pool_bytes is not None or device.type != "cuda":
        return pool_blocks(size, config.max_context, pool_bytes)
    free, _ = torch.cuda.mem_get_info(device)
    room = min(int((free - WORKSPACE_BYTES) * POOL_SHARE), MOST_BLOCKS * size)
    return blocks_in(room, size, config.max_context)


def choose_attention(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Attention:
    """On a GPU the Triton kernels, where they are there and agree with plain torch; else plain torch."""
    prepare_torch()  # read once, at the first product
    plain = GatheredAttention()
    if device.type != "cuda":
        return plain
    try:
        from forerun.engine.cuda.triton_attention import TritonAttention  # noqa: PLC0415 - not on every machine
    except ImportError as error:
        log.warning("attention without kernels, more slowly: %s", error)
        return plain
    kernels = TritonAttention(config, max(BUCKETS), device)
    try:
        apart = difference(kernels, plain, config, dtype, device)
    except Exception as error:  # noqa: BLE001 - a compiler of another vendor fails in ways of its own; plain torch remains
        log.warning("attention without kernels, more slowly: they do not run here: %s", error)
        return plain
    if not apart <= _DIFFERENCE[dtype]:
        log.warning("attention without kernels, more slowly: theirs is off by %g", apart)
        return plain
    return kernels
