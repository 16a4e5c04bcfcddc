"""What a pass reads besides weights and KV: buffers of fixed place and size, as graphs need them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.engine.kv import BLOCK
from forerun.engine.rows import Rows

_FIELDS = 6

Longs = NDArray[np.int64]


class PassInputs:
    """Buffers for at most `max_rows` rows on a device; `fill` sets them for one pass.

    int64, (max_rows,): `token_ids`, `positions`, `segments`, `slots` (block times 16 plus offset, where the row's
    keys go), `group_rows` and `group_counts`: neighbours of one session, at most `rows_a_group`, that attention
    takes together. `tables`: (max_rows + 1, width) int32, blocks by segment. Rows that pad a pass are token 0 at
    position 0 of the last segment, whose only block is the scratch block: rows like any other that nobody reads.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_context: int,
        scratch_block: int,
        rows_a_group: int,
        device: torch.device,
    ) -> None:
        self._max_rows = max_rows
        self._scratch_block = scratch_block
        self._rows_a_group = rows_a_group
        self._host = torch.zeros(_FIELDS, max_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = torch.zeros(_FIELDS, max_rows, dtype=torch.int64, device=device)
        (
            self.token_ids,
            self.positions,
            self.segments,
            self.slots,
            self.group_rows,
            self.group_counts,
        ) = self._device
        width = -(-max_context // BLOCK)
        self.tables = torch.zeros(max_rows + 1, width, dtype=torch.int32, device=device)
        self.tables[max_rows] = scratch_block
        self.longest = 1  # positions the pass attends to at most; for attention that is not captured

    def fill(self, rows: Rows) -> None:
        """Set the buffers; what comes behind the rows is padding. The caller has waited for the pass before."""
        count, host = len(rows.token_ids), self._host.numpy()
        present, segments = np.unique(rows.segments, return_inverse=True)
        blocks = rows.tables[rows.segments, rows.positions // BLOCK].astype(np.int64)
        host[0, :count], host[0, count:] = rows.token_ids, 0
        host[1, :count], host[1, count:] = rows.positions, 0
        host[2, :count], host[2, count:] = segments, self._max_rows
        host[3, :count], host[3, count:] = (
            blocks * BLOCK + rows.positions % BLOCK,
            self._scratch_block * BLOCK,
        )
        first_rows, counts = groups(segments, self._rows_a_group)
        host[4:, :] = 0
        host[4, : len(counts)], host[5, : len(counts)] = first_rows, counts
        self._device.copy_(self._host, non_blocking=True)
        own = torch.from_numpy(rows.tables[present])
        self.tables[: own.shape[0], : own.shape[1]].copy_(own)
        self.longest = int(rows.positions.max()) + 1


def groups(segments: Longs, most: int) -> tuple[Longs, Longs]:
    """First row and length of runs of equal segments, cut to at most `most` rows."""
    starts = np.flatnonzero(np.diff(segments, prepend=-1))
    lengths = np.diff(starts, append=len(segments))
    pieces = -(-lengths // most)
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first_rows = np.repeat(starts, pieces) + within * most
    return first_rows, np.minimum(most, np.repeat(starts + lengths, pieces) - first_rows)
