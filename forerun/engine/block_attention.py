"""Attention over KV blocks, registered with transformers: each row by itself, over exactly the positions it sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from forerun.engine.kv import BLOCK
from forerun.engine.rows import Rows

ATTENTION = "forerun_blocks"
KNOWN_ARGUMENTS = {
    "scaling",
    "dropout",
    "sliding_window",
    "softcap",
    "is_causal",
    "position_ids",
    "use_cache",
}


@dataclass
class Keys:
    """One layer's pool: keys and values by position, (positions, kv_heads, head_dim)."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass
class Seat:
    """What the attention of one model's modules works on; each module carries it as `forerun_seat`."""

    pool: dict[int, Keys] = field(default_factory=dict)  # by layer
    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # kv heads, key and value size
    rows: Rows | None = None  # of the pass in progress


def register_attention() -> None:
    """Modules that ask transformers for ATTENTION get `attend` and no mask."""
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, no_mask)


def no_mask(*_arguments: Any, **_named: Any) -> None:
    """Rows belong to sessions, which a mask does not know."""


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: (1, heads, rows, size) in, (1, rows, heads, size) out."""
    unknown = {name for name, given in others.items() if given is not None} - KNOWN_ARGUMENTS
    if unknown:
        raise ValueError(f"attention with {min(unknown)}")
    if not getattr(module, "is_causal", True):
        raise ValueError("attention that looks ahead")
    seat: Seat = module.forerun_seat
    layer = int(module.layer_idx)
    seat.shapes[layer] = (key.shape[1], key.shape[3], value.shape[3])
    out = torch.zeros(1, query.shape[2], query.shape[1], value.shape[3], dtype=query.dtype)
    if layer not in seat.pool or seat.rows is None:
        return out, None
    pool, rows = seat.pool[layer], seat.rows
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    slots = (
        rows.tables[rows.segments, rows.positions // BLOCK].astype(np.int64) * BLOCK + rows.positions % BLOCK
    )
    count = len(slots)
    where = torch.from_numpy(slots)
    pool.keys[where] = key[0].transpose(0, 1)[:count]
    pool.values[where] = value[0].transpose(0, 1)[:count]
    for segment in np.unique(rows.segments):
        own = np.flatnonzero(rows.segments == segment)
        length = int(rows.positions[own[-1]]) + 1
        table = torch.from_numpy(rows.tables[segment, : -(-length // BLOCK)].astype(np.int64))
        held = (table[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:length]
        keys, values = pool.keys[held].float(), pool.values[held].float()
        for row in own.tolist():
            end = int(rows.positions[row]) + 1
            seen = slice(max(0, end - sliding_window) if sliding_window else 0, end)
            out[0, row] = _attend_row(query[0, :, row].float() * scale, keys[seen], values[seen], softcap)
    return out, None


def _attend_row(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    """One row: q (heads, size), keys and values (positions, kv_heads, size), all float32; (heads, size) out."""
    grouped = q.reshape(keys.shape[1], -1, q.shape[1])
    scores = torch.einsum("hgd,phd->hgp", grouped, keys)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    return torch.einsum("hgp,phd->hgd", torch.softmax(scores, -1), values).reshape(q.shape[0], -1)
