"""Attention over KV blocks through Triton's kernels.

Neighbours, padding and the longest session change nothing of a row, and no shape depends on lengths, so a pass can be
captured.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from forerun.engine.cuda.kernels import attend_parts, join_parts
from forerun.engine.cuda.pass_inputs import PassInputs
from forerun.engine.kv import BLOCK
from forerun.engine.model_config import ModelConfig

STEP = 64  # positions of one product
MOST_SPLITS = 16  # parts a context is cut into at most; their results wait in memory
SHORTEST_SPLIT = 256
TILE_ROWS = 32  # (row, head) pairs of one product; 16 is the least


class TritonAttention:
    """Attention for one model's shapes and at most `max_rows` rows a pass."""

    name = f"triton-{triton.__version__}"
    fixed_shape = True

    def __init__(self, config: ModelConfig, max_rows: int, device: torch.device) -> None:
        self._config = config
        self._heads_padded = triton.next_power_of_2(config.num_heads // config.num_kv_heads)
        self._tile = max(TILE_ROWS, self._heads_padded)
        self._split = max(SHORTEST_SPLIT, -(-config.max_context // MOST_SPLITS // STEP) * STEP)
        self._num_splits = -(-config.max_context // self._split)
        shape = (max_rows, config.num_heads, self._num_splits)
        self._parts = torch.zeros(*shape, config.head_dim, device=device)
        self._tops = torch.zeros(shape, device=device)
        self._sums = torch.zeros(shape, device=device)

    @property
    def rows_a_group(self) -> int:
        """Rows of one session that are taken together."""
        return int(self._tile // self._heads_padded)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: PassInputs
    ) -> torch.Tensor:
        """Return (rows, heads * head_dim); see `Attention`. Padding rows hold numbers without meaning."""
        c, rows = self._config, len(query)
        out = torch.empty(rows, c.num_heads * c.head_dim, dtype=query.dtype, device=query.device)
        sizes: dict[str, Any] = {
            "HEADS": c.num_heads,
            "SIZE": c.head_dim,
            "SIZE_PADDED": triton.next_power_of_2(c.head_dim),
            "NUM_SPLITS": self._num_splits,
            "SPLIT": self._split,
            "enable_fp_fusion": True,  # said, because Triton's own choice changes between versions
        }
        attend_parts[(rows, c.num_kv_heads, self._num_splits)](
            query,
            keys,
            values,
            inputs.tables,
            inputs.positions,
            inputs.segments,
            inputs.group_rows,
            inputs.group_counts,
            self._parts,
            self._tops,
            self._sums,
            c.head_dim**-0.5,
            inputs.tables.stride(0),
            query.stride(0),
            KV_HEADS=c.num_kv_heads,
            HEADS_PADDED=self._heads_padded,
            TILE=self._tile,
            POSITIONS_A_BLOCK=BLOCK,
            POSITIONS_A_STEP=STEP,
            **sizes,
        )
        join_parts[(rows, c.num_heads)](self._parts, self._tops, self._sums, inputs.positions, out, **sizes)
        return out
