"""The Triton kernels of attention. Pointers come first, then strides, then what is compiled in.

A row's sums are in an order that its own position alone fixes: the text is cut at multiples of SPLIT positions, each
part is summed in steps, and the parts are joined in order. Steps that a row does not see add exact zeros.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def attend_parts(
    query,
    keys,
    values,
    tables,
    positions,
    segments,
    group_rows,
    group_counts,
    parts,
    tops,
    sums,
    scale,
    table_stride,
    query_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLIT: tl.constexpr,
    POSITIONS_A_BLOCK: tl.constexpr,
    POSITIONS_A_STEP: tl.constexpr,
):
    """One group of rows, one KV head, one part of the text: weighted values, their top score and their sum."""
    group, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(group_counts + group)
    first = tl.load(group_rows + group)
    last = tl.load(positions + first + count - 1, mask=count > 0, other=-1)
    begin = split * SPLIT
    if begin <= last:
        heads: tl.constexpr = HEADS // KV_HEADS
        pair = tl.arange(0, TILE)
        row, head = pair // HEADS_PADDED, pair % HEADS_PADDED
        mine = (row < count) & (head < heads)
        row, head = first + row, kv_head * heads + head
        dim = tl.arange(0, SIZE_PADDED)
        own_dim = dim < SIZE
        q_at = row[:, None] * query_stride + head[:, None] * SIZE + dim[None, :]
        q = tl.load(query + q_at, mask=mine[:, None] & own_dim[None, :], other=0.0)
        position = tl.load(positions + row, mask=mine, other=-1)
        table = tables + tl.load(segments + first) * table_stride
        top = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        out = tl.zeros([TILE, SIZE_PADDED], tl.float32)
        end = tl.minimum(begin + SPLIT, last + 1)
        for start in range(begin, end, POSITIONS_A_STEP):
            at = start + tl.arange(0, POSITIONS_A_STEP)
            held = at < end
            block = tl.load(table + at // POSITIONS_A_BLOCK, mask=held, other=0).to(tl.int64)
            slot = block * POSITIONS_A_BLOCK + at % POSITIONS_A_BLOCK
            kv_at = (slot[:, None] * KV_HEADS + kv_head) * SIZE + dim[None, :]
            kv_mask = held[:, None] & own_dim[None, :]
            k = tl.load(keys + kv_at, mask=kv_mask, other=0.0)
            v = tl.load(values + kv_at, mask=kv_mask, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            seen = held[None, :] & (at[None, :] <= position[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            # A row that sees nothing of this part keeps minus infinity, and weights of zero.
            floor = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp(scores - floor[:, None])
            fade = tl.exp(top - floor)
            total = total * fade + tl.sum(weights, 1)
            out = out * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            top = higher
        part = (row * HEADS + head) * NUM_SPLITS + split
        tl.store(tops + part, top, mask=mine)
        tl.store(sums + part, total, mask=mine)
        tl.store(parts + part[:, None] * SIZE + dim[None, :], out, mask=mine[:, None] & own_dim[None, :])


@triton.jit
def join_parts(
    parts,
    tops,
    sums,
    positions,
    joined,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One row, one head: the parts of the text up to the row's position, in order."""
    row, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, SIZE_PADDED)
    num_parts = tl.load(positions + row) // SPLIT + 1
    first = (row * HEADS + head) * NUM_SPLITS
    top = tl.load(tops + first)
    total = tl.load(sums + first)
    out = tl.load(parts + first * SIZE + dim, mask=dim < SIZE, other=0.0)
    for part in range(first + 1, first + num_parts):
        part_top = tl.load(tops + part)
        higher = tl.maximum(top, part_top)
        fade, gain = tl.exp(top - higher), tl.exp(part_top - higher)
        part_out = tl.load(parts + part * SIZE + dim, mask=dim < SIZE, other=0.0)
        total = total * fade + tl.load(sums + part) * gain
        out = out * fade + part_out * gain
        top = higher
    out = out / tl.where(total > 0.0, total, 1.0)  # padding has no sum
    tl.store(joined + (row * HEADS + head) * SIZE + dim, out.to(joined.dtype.element_ty), mask=dim < SIZE)
