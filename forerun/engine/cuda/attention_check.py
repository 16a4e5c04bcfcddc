"""Whether two forms of attention compute the same."""

from __future__ import annotations

import numpy as np
import torch

from forerun.engine.cuda.attention import Attention
from forerun.engine.cuda.pass_inputs import PassInputs
from forerun.engine.kv import BLOCK
from forerun.engine.model_config import ModelConfig
from forerun.engine.rows import Rows

_LENGTHS = (700, 33, 290)  # positions of the sessions, at most
_ROWS = 7  # of each


@torch.inference_mode()
def difference(
    one: Attention, other: Attention, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> float:
    """The largest difference between two forms of attention: three sessions, random values."""
    rows = sample_rows(config.max_context)
    num_blocks = int(rows.tables.max()) + 1
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    keys, values = (drawn(num_blocks * BLOCK, config.num_kv_heads, config.head_dim) for _ in range(2))
    query = drawn(len(rows.token_ids), config.num_heads, config.head_dim)
    found = []
    for attention in (one, other):
        inputs = PassInputs(
            max_rows=len(rows.token_ids),
            max_context=config.max_context,
            scratch_block=0,
            rows_a_group=attention.rows_a_group,
            device=device,
        )
        inputs.fill(rows)
        found.append(attention.attend(query, keys, values, inputs).float())
    return float((found[0] - found[1]).abs().max())


def sample_rows(max_context: int) -> Rows:
    """The last rows of three sessions of unlike lengths, whose blocks lie in no order."""
    lengths = [min(length, max_context) for length in _LENGTHS]
    widths = [-(-length // BLOCK) for length in lengths]
    blocks = np.random.default_rng(0).permutation(sum(widths)).astype(np.int32)
    tables = np.zeros((len(lengths), max(widths)), np.int32)
    for table, own in zip(tables, np.split(blocks, np.cumsum(widths)[:-1]), strict=True):
        table[: len(own)] = own
    counts = [min(_ROWS, length) for length in lengths]
    positions = np.concatenate(
        [np.arange(end - count, end) for end, count in zip(lengths, counts, strict=True)]
    ).astype(np.int32)
    segments = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
    every = np.arange(len(positions), dtype=np.int32)
    return Rows(np.zeros_like(positions), positions, segments, tables, every)
