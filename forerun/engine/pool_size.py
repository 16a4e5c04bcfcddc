"""How large a KV pool is."""

from __future__ import annotations

import os

from forerun.engine.kv import BLOCK
from forerun.errors import InvalidRequest

DEFAULT_POOL_BYTES = 2 << 30
MOST_BLOCKS = 1 << 16  # by default: a million positions
FEWEST_POSITIONS = 1024  # a pool that holds fewer serves nobody
MEMORY_SHARE = 0.25  # of the machine's memory, for the KV pool, at most


def pool_blocks(block_size: int, max_context: int, pool_bytes: int | None) -> int:
    """Blocks of `block_size` bytes the KV pool gets: what `pool_bytes` holds, by default a share of memory.

    By default a context that needs more than the share gets it, up to half of memory. Raises InvalidRequest for a
    pool that holds next to nothing.
    """
    room = pool_bytes
    if room is None:
        memory = _memory_bytes()
        share = min(DEFAULT_POOL_BYTES, int(memory * MEMORY_SHARE), MOST_BLOCKS * block_size)
        room = min(max(_needed(block_size, max_context), share), memory // 2)
    return blocks_in(room, block_size, max_context)


def blocks_in(room: int, block_size: int, max_context: int) -> int:
    """Blocks of `block_size` bytes in `room` bytes, at most one full context or `FEWEST_POSITIONS` being needed.

    A pool that does not hold one full context bounds the context (`load_engine`). Raises InvalidRequest for less.
    """
    fewest = min(max_context, FEWEST_POSITIONS)
    needed = _needed(block_size, fewest)
    if room < needed:
        raise InvalidRequest(
            f"a KV pool of {max(0, room) >> 20} MiB does not hold {fewest} positions; it takes {-(-needed >> 20)} MiB",
            field="pool_bytes",
            reason="POOL_TOO_SMALL",
        )
    return room // block_size


def _needed(block_size: int, max_context: int) -> int:
    return -(-max_context // BLOCK) * block_size


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
