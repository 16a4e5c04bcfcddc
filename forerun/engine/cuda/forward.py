"""The Llama family through torch, on a GPU, or on any device torch computes on.

A library's product takes another kernel by its number of rows, and the bits differ. So a pass has one of few numbers of
rows, its *bucket*, padded; TILE rows are the measure, and another bucket is used only where it was seen, at the start,
to give a row the very bits that TILE rows give it. Where none does, every product has TILE rows: on a GPU that is
about as fast as one row, because reading the weights takes the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.engine.cuda.arithmetic import Arithmetic
from forerun.engine.cuda.attention import Attention
from forerun.engine.cuda.device_weights import DeviceWeights
from forerun.engine.cuda.graphs import Graphs
from forerun.engine.cuda.naming import Naming
from forerun.engine.kv import BLOCK
from forerun.engine.model_config import ModelConfig
from forerun.engine.rows import LOGITS, Rows, split_rows

TILE = 64
BUCKETS = (1, 2, 4, 8, 16, 32, TILE, 128, 256)
_TRIAL_LENGTH = 256  # rows of the text by which buckets are compared

Work = Callable[[], None]


def prepare_torch() -> None:
    """Products of this process keep to their dtype's precision and sum in an order that a shape fixes."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of KV that 16 positions take."""
    return 2 * BLOCK * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


class TorchForward:
    """A `Forward` through torch. Holds the KV pool of `num_blocks` blocks; on a GPU, graphs of every bucket.

    `buckets`: the row counts a pass may be padded to, ascending, all of equal bits. `masked_ids`: ids that name no
    token.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DeviceWeights,
        attention: Attention,
        *,
        vocab_size: int,
        num_blocks: int,
        masked_ids: Sequence[int] = (),
        progress: Callable[[float], None],
        candidates: Iterable[int] = BUCKETS,
    ) -> None:
        prepare_torch()
        self._vocab_size = vocab_size
        self._attention = attention
        self._device = weights.embedding.device
        buckets = tuple(sorted({TILE, *candidates}))
        self._work = Arithmetic(
            config, weights, attention, num_blocks=num_blocks, max_rows=buckets[-1], max_logits=TILE
        )
        cuda = self._device.type == "cuda"
        self._naming = Naming(vocab_size, masked_ids, self._device)
        self._host_picked = torch.zeros(TILE, dtype=torch.int64, pin_memory=cuda)
        self._host_logits = torch.zeros(TILE, vocab_size, pin_memory=cuda)
        self._bodies, self._heads = self._prepared(buckets, progress)
        self.buckets = buckets
        length = min(_TRIAL_LENGTH, config.max_context, num_blocks * BLOCK)
        self.buckets = tuple(self._equal_to_tile(length))

    @property
    def max_rows(self) -> int:
        """Rows one call takes at most."""
        return self.buckets[-1]

    @property
    def build(self) -> str:
        """Equal strings compute equal bits from equal weights."""
        if self._device.type != "cuda":
            return (
                f"torch-{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}-{self._attention.name}"
            )
        card = torch.cuda.get_device_properties(self._device)
        return (
            f"torch-{torch.__version__}-{torch.version.cuda}-{card.name}-{card.multi_processor_count}-"
            f"{self._attention.name}-{TILE}"
        )

    def run(self, rows: Rows, logits: NDArray[np.float32]) -> NDArray[np.int64] | None:
        """Write the rows' keys and values to their blocks; name what tokens can be named here, fetch other logits."""
        return self._run(rows, logits, self.buckets)

    def copy_block(self, source: int, target: int) -> None:
        """Copy all layers' keys and values of one block over another."""
        for pool in (self._work.keys, self._work.values):
            pool[:, target * BLOCK : (target + 1) * BLOCK] = pool[:, source * BLOCK : (source + 1) * BLOCK]

    @torch.inference_mode()
    def _run(
        self, rows: Rows, logits: NDArray[np.float32], buckets: Iterable[int]
    ) -> NDArray[np.int64] | None:
        """One pass padded to the first of `buckets` (ascending) that holds it."""
        buckets = tuple(buckets)
        self._work.inputs.fill(rows)
        self._bodies[_holding(buckets, len(rows.token_ids))]()
        most = max(bucket for bucket in buckets if bucket in self._heads)
        named = np.full(len(rows.logit_rows), LOGITS)
        for at in range(0, len(rows.logit_rows), most):
            wanted = rows.logit_rows[at : at + most]
            count = len(wanted)
            self._host_picked.numpy()[:count] = wanted
            self._work.picked.copy_(self._host_picked, non_blocking=True)
            self._heads[_holding(buckets, count)]()
            found = self._work.logits[:count, : self._vocab_size]
            if samplers := rows.samplers[at : at + most]:
                named[at : at + count] = self._naming.name(
                    found, samplers, rows.positions[wanted] + np.int64(1)
                )
            left = np.flatnonzero(named[at : at + count] == LOGITS)
            if not len(left):
                continue
            picked = found if len(left) == count else found[torch.from_numpy(left).to(self._device)]
            self._host_logits[: len(left)].copy_(picked, non_blocking=True)
            self._wait()
            logits[at + left] = self._host_logits.numpy()[: len(left)]
        if not len(rows.logit_rows):
            self._wait()  # the host's buffers are read until then
        return named if len(rows.samplers) else None

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    @torch.inference_mode()
    def _prepared(
        self, buckets: tuple[int, ...], progress: Callable[[float], None]
    ) -> tuple[dict[int, Work], dict[int, Work]]:
        """What computes each bucket; the largest is captured first, so that the others fit into its memory."""
        bodies: dict[int, Work] = {b: partial(self._work.body, b) for b in buckets}
        heads: dict[int, Work] = {b: partial(self._work.head, b) for b in buckets if b <= TILE}
        if self._device.type == "cuda" and self._attention.fixed_shape:
            graphs = Graphs(self._device)
            for done, bucket in enumerate(sorted(buckets, reverse=True)):
                bodies[bucket] = graphs.capture(bodies[bucket])
                if bucket in heads:
                    heads[bucket] = graphs.capture(heads[bucket])
                progress((done + 1) / len(buckets))
        progress(1.0)
        return bodies, heads

    def _equal_to_tile(self, length: int) -> list[int]:
        """The buckets whose logits have the bits of TILE rows, over the last rows of a random text."""
        rows = _text_rows(length, self._vocab_size)
        expected, kept = self._trial(rows, 0, TILE), []
        for bucket in self.buckets:
            found = self._trial(rows, max(0, length - bucket), bucket)
            equal = np.array_equal(found.view(np.uint32), expected[-len(found) :].view(np.uint32))
            if equal or bucket == TILE:
                kept.append(bucket)
            else:  # it left keys and values of other bits
                self._trial(rows, 0, TILE)
        return kept

    def _trial(self, rows: Rows, start: int, bucket: int) -> NDArray[np.float32]:
        """Logits of the last rows, at most TILE and `bucket`, of passes of `bucket` rows from row `start` on."""
        count = min(bucket, TILE, len(rows.token_ids) - start)
        logits = np.empty((count, self._vocab_size), np.float32)
        tail = Rows(
            rows.token_ids[start:],
            rows.positions[start:],
            rows.segments[start:],
            rows.tables,
            np.arange(len(rows.token_ids) - start - count, len(rows.token_ids) - start, dtype=np.int32),
        )
        done = 0
        for part in split_rows(tail, bucket):
            found = len(part.logit_rows)
            self._run(part, logits[done : done + found], (min(bucket, TILE), bucket))
            done += found
        return logits


def _holding(buckets: Iterable[int], count: int) -> int:
    return next(bucket for bucket in buckets if bucket >= count)


def _text_rows(length: int, vocab_size: int) -> Rows:
    """A random text of one session in the pool's first blocks, every row wanting logits."""
    token_ids = np.random.default_rng(0).integers(0, vocab_size, length).astype(np.int32)
    positions = np.arange(length, dtype=np.int32)
    table = np.arange(-(-length // BLOCK), dtype=np.int32)[None]
    return Rows(token_ids, positions, np.zeros_like(positions), table, positions)
