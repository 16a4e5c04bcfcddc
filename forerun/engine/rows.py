"""The packed rows of one pass, and what runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.engine.interface import Segment

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of several sessions. Rows of a segment are neighbours with ascending positions.

    `token_ids`, `positions`, `segments`: (num_rows,) int32; `tables`: (num_segments, width) int32, KV blocks of each
    segment's session; `logit_rows`: (num_logits,) int32, the rows that want logits, ascending.
    """

    token_ids: Ints
    positions: Ints
    segments: Ints
    tables: Ints
    logit_rows: Ints


class Forward(Protocol):
    """A model's weights and KV pool on a device, and the arithmetic of one pass."""

    @property
    def max_rows(self) -> int:
        """Rows one call takes at most."""

    @property
    def build(self) -> str:
        """Equal strings compute equal bits from equal weights."""

    def run(self, rows: Rows, logits: NDArray[np.float32]) -> None:
        """Write the rows' keys and values to their blocks, and (num_logits, vocab_size) into `logits`."""

    def copy_block(self, source: int, target: int) -> None:
        """Copy all layers' keys and values of one block over another."""


def pack_rows(segments: Sequence[Segment], tables: Sequence[Sequence[int]]) -> Rows:
    """All rows of all segments, in order."""
    lengths = [len(segment.token_ids) for segment in segments]
    total = sum(lengths)
    token_ids = np.empty(total, np.int32)
    positions = np.empty(total, np.int32)
    wanted = np.zeros(total, np.bool_)
    block_table = np.zeros((len(tables), max(map(len, tables), default=0)), np.int32)
    at = 0
    for i, (segment, length) in enumerate(zip(segments, lengths, strict=True)):
        token_ids[at : at + length] = segment.token_ids
        positions[at : at + length] = np.arange(segment.start, segment.start + length)
        wanted[at + length - segment.num_logits : at + length] = True
        block_table[i, : len(tables[i])] = tables[i]
        at += length
    owners = np.repeat(np.arange(len(segments), dtype=np.int32), lengths)
    return Rows(token_ids, positions, owners, block_table, np.flatnonzero(wanted).astype(np.int32))


def split_rows(rows: Rows, most: int) -> Iterator[Rows]:
    """The same rows in order, at most `most` at a time."""
    total = len(rows.token_ids)
    if total <= most:
        yield rows
        return
    for at in range(0, total, most):
        part = slice(at, at + most)
        inside = rows.logit_rows[(rows.logit_rows >= at) & (rows.logit_rows < at + most)] - np.int32(at)
        yield Rows(rows.token_ids[part], rows.positions[part], rows.segments[part], rows.tables, inside)
