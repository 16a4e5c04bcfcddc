"""The packed rows of one pass, and what runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.core.types import Sampler
from forerun.engine.interface import Segment

Ints = NDArray[np.int32]
LOGITS = -2  # instead of a token id: the row has logits


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of several sessions. Rows of a segment are neighbours with ascending positions.

    `token_ids`, `positions`, `segments`: (num_rows,) int32; `tables`: (num_segments, width) int32, KV blocks of each
    segment's session; `logit_rows`: (num_logits,) int32, the rows that want logits, ascending; `samplers`: with what
    the tokens there can be named, a sampler or None for each; empty: none.
    """

    token_ids: Ints
    positions: Ints
    segments: Ints
    tables: Ints
    logit_rows: Ints
    samplers: Sequence[Sampler | None] = ()


class Forward(Protocol):
    """A model's weights and KV pool on a device, and the arithmetic of one pass."""

    @property
    def max_rows(self) -> int:
        """Rows one call takes at most."""

    @property
    def build(self) -> str:
        """Equal strings compute equal bits from equal weights."""

    def run(self, rows: Rows, logits: NDArray[np.float32]) -> NDArray[np.int64] | None:
        """Write the rows' keys and values to their blocks, and (num_logits, vocab_size) into `logits`.

        Where logits are dear to fetch, token ids (num_logits,) may be returned instead: of rows whose sampler named
        one; the others say LOGITS, and only theirs were written.
        """

    def copy_block(self, source: int, target: int) -> None:
        """Copy all layers' keys and values of one block over another."""


def pack_rows(segments: Sequence[Segment], tables: Sequence[Sequence[int]]) -> Rows:
    """All rows of all segments, in order."""
    lengths = [len(segment.token_ids) for segment in segments]
    total = sum(lengths)
    token_ids = np.empty(total, np.int32)
    positions = np.empty(total, np.int32)
    wanted = np.zeros(total, np.bool_)
    samplers: list[Sampler | None] = []
    block_table = np.zeros((len(tables), max(map(len, tables), default=0)), np.int32)
    at = 0
    for i, (segment, length) in enumerate(zip(segments, lengths, strict=True)):
        token_ids[at : at + length] = segment.token_ids
        positions[at : at + length] = np.arange(segment.start, segment.start + length)
        wanted[at + length - segment.num_logits : at + length] = True
        block_table[i, : len(tables[i])] = tables[i]
        samplers += [segment.sampler] * segment.num_logits
        at += length
    owners = np.repeat(np.arange(len(segments), dtype=np.int32), lengths)
    return Rows(token_ids, positions, owners, block_table, np.flatnonzero(wanted).astype(np.int32), samplers)


def split_rows(rows: Rows, most: int) -> Iterator[Rows]:
    """The same rows in order, at most `most` at a time."""
    total = len(rows.token_ids)
    if total <= most:
        yield rows
        return
    for at in range(0, total, most):
        part = slice(at, at + most)
        first, last = np.searchsorted(rows.logit_rows, (at, at + most))
        yield Rows(
            rows.token_ids[part],
            rows.positions[part],
            rows.segments[part],
            rows.tables,
            rows.logit_rows[first:last] - np.int32(at),
            rows.samplers[first:last],
        )
