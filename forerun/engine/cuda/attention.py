"""Attention over KV blocks: what computes it, and the form of plain torch operations."""

from __future__ import annotations

from typing import Protocol

import torch

from forerun.engine.cuda.pass_inputs import PassInputs
from forerun.engine.kv import BLOCK

SPAN = 256  # positions taken at once, at fixed places, so that no sum depends on the longest neighbour


class Attention(Protocol):
    """Attention of the rows of one pass over the positions each of them sees."""

    name: str
    fixed_shape: bool  # nothing of it depends on lengths: it may be captured

    @property
    def rows_a_group(self) -> int:
        """Rows of one session that are taken together."""

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: PassInputs
    ) -> torch.Tensor:
        """Return (rows, heads * head_dim) for `query` (rows, heads, head_dim).

        `keys`, `values`: the layer's pool, (slots, KV heads, head_dim), with the rows' own already in it.
        """


class GatheredAttention:
    """Gathers the positions of every row, 256 at a time, and computes in float32."""

    name = "gathered"
    fixed_shape = False
    rows_a_group = 1

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: PassInputs
    ) -> torch.Tensor:
        """Return (rows, heads * head_dim); see `Attention`."""
        rows, heads, size = query.shape
        kv_heads = keys.shape[1]
        q = query.float().view(rows, kv_heads, heads // kv_heads, size) * size**-0.5
        top = q.new_full((rows, kv_heads, heads // kv_heads, 1), -torch.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        positions, tables = inputs.positions[:rows, None], inputs.tables[inputs.segments[:rows]]
        for start in range(0, inputs.longest, SPAN):
            slots, at = _span(tables, start)
            seen = at <= positions
            scores = torch.einsum("rkgd,rskd->rkgs", q, keys[slots].float())
            scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
            # What nobody sees may hold anything, also what is not a number.
            held = values[slots].float().masked_fill(~seen[:, :, None, None], 0.0)
            # Position 0 is seen by every row, so the first span leaves no top at minus infinity.
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, fade = torch.exp(scores - higher), torch.exp(top - higher)
            total = total * fade + weights.sum(-1, keepdim=True)
            out = out * fade + torch.einsum("rkgs,rskd->rkgd", weights, held)
            top = higher
        return (out / total).reshape(rows, heads * size).to(query.dtype)


def _span(tables: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots (rows, SPAN) and positions (SPAN,) from `start`; behind the tables' end slots repeat the first block."""
    at = torch.arange(start, start + SPAN, device=tables.device)
    blocks = at // BLOCK
    inside = blocks < tables.shape[1]
    found = tables[:, torch.where(inside, blocks, 0)].long()
    return found * BLOCK + at % BLOCK, at
