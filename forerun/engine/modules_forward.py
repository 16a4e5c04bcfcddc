"""Any causal LM of transformers: its own modules, our KV blocks and our attention.

Every pass has exactly ROWS rows, padded: one shape, one kernel, so a row's result does not depend on how many rows
came with it. Attention takes each row by itself over exactly the positions it sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

from forerun.engine.kv import BLOCK
from forerun.engine.model_config import unsupported
from forerun.engine.rows import Rows
from forerun.errors import InvalidRequest, NotFound

ROWS = 16
_ATTENTION = "forerun_blocks"
_KNOWN_ARGUMENTS = {
    "scaling",
    "dropout",
    "sliding_window",
    "softcap",
    "is_causal",
    "position_ids",
    "use_cache",
}
_SELF_CHECK_TOKENS = 24
_MOST_DIFFERENCE = {torch.float32: 0.001, torch.bfloat16: 0.1}  # mean, in standard deviations of the logits


@dataclass
class _Keys:
    """One layer's pool: keys and values by position, (positions, kv_heads, head_dim)."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass
class _Seat:
    """What the attention of one model's modules works on; each module carries it as `forerun_seat`."""

    pool: dict[int, _Keys] = field(default_factory=dict)  # by layer
    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # kv heads, key and value size
    rows: Rows | None = None  # of the pass in progress


class ModulesForward:
    """A `Forward` through transformers' modules, 16 rows at a time."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, threads: int) -> None:
        AttentionInterface.register(_ATTENTION, _attend)
        AttentionMaskInterface.register(_ATTENTION, _no_mask)
        torch.set_num_threads(threads)
        self._threads = threads
        self._dtype = dtype
        self._model = _from_folder(folder, dtype)
        self._seat = _Seat()
        for module in self._model.modules():
            module.forerun_seat = self._seat
        self._stock = self._stock_logits()
        self._learn_shapes()

    @property
    def max_rows(self) -> int:
        """Rows one call takes at most."""
        return ROWS

    @property
    def build(self) -> str:
        """Equal strings compute equal bits from equal weights."""
        capability = torch.backends.cpu.get_cpu_capability()
        return f"modules-{transformers.__version__}-{torch.__version__}-{capability}-{self._threads}"

    @property
    def vocab_width(self) -> int:
        """Columns of the logits."""
        return int(self._stock.shape[-1])

    @property
    def max_context(self) -> int:
        """Positions the model was made for."""
        context = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        if context is None:
            raise unsupported(f"{type(self._model).__name__} names no longest context")
        return int(context)

    @property
    def block_bytes(self) -> int:
        """Bytes of KV that 16 positions take."""
        return (
            sum(heads * (key + value) for heads, key, value in self._seat.shapes.values())
            * BLOCK
            * self._dtype.itemsize
        )

    def allocate(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks; check the arithmetic against transformers' own attention.

        Raises InvalidRequest for a model whose attention does something that is not known here.
        """
        positions = num_blocks * BLOCK
        for layer, (heads, key, value) in self._seat.shapes.items():
            self._seat.pool[layer] = _Keys(
                self._room(positions, heads, key), self._room(positions, heads, value)
            )
        self._check_against_stock()

    def run(self, rows: Rows, logits: NDArray[np.float32]) -> None:
        """Write the rows' keys and values to their blocks, and (num_logits, vocab_size) into `logits`."""
        torch.set_num_threads(self._threads)  # of the calling thread, which may not be the one that loaded
        count = len(rows.token_ids)
        token_ids = torch.zeros(1, ROWS, dtype=torch.long)
        positions = torch.zeros(1, ROWS, dtype=torch.long)
        token_ids[0, :count] = torch.from_numpy(rows.token_ids)
        positions[0, :count] = torch.from_numpy(rows.positions)
        self._seat.rows = rows
        with torch.inference_mode():
            found = self._model(input_ids=token_ids, position_ids=positions, use_cache=False).logits[0]
            wanted = found[torch.from_numpy(rows.logit_rows).long(), : logits.shape[1]]
            logits[:] = wanted.float().numpy()

    def copy_block(self, source: int, target: int) -> None:
        """Copy all layers' keys and values of one block over another."""
        for layer in self._seat.pool.values():
            for pool in (layer.keys, layer.values):
                pool[target * BLOCK : (target + 1) * BLOCK] = pool[source * BLOCK : (source + 1) * BLOCK]

    def _room(self, *shape: int) -> torch.Tensor:
        """Zeros that take memory only where they are written."""
        plain = np.zeros(shape, np.uint16 if self._dtype.itemsize == 2 else np.float32)
        return torch.from_numpy(plain).view(self._dtype)

    def _sample_ids(self) -> torch.Tensor:
        width = int(self._model.config.get_text_config().vocab_size)
        count = min(_SELF_CHECK_TOKENS, self.max_context)
        return torch.from_numpy(np.random.default_rng(0).integers(0, width, (1, count)))

    def _stock_logits(self) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = (
                self._model(input_ids=self._sample_ids(), use_cache=False).logits[0].float()
            )
        return logits

    def _learn_shapes(self) -> None:
        """Run once without a pool: attention notes each layer's shapes."""
        try:
            self._model.set_attn_implementation(_ATTENTION)
            with torch.inference_mode():
                self._model(input_ids=self._sample_ids()[:, :2], use_cache=False)
        except (ValueError, ImportError, AttributeError, TypeError) as error:
            raise unsupported(f"{type(self._model).__name__}: {error}") from error
        if not self._seat.shapes:
            raise unsupported(
                f"{type(self._model).__name__} does not compute attention through transformers' interface"
            )

    def _check_against_stock(self) -> None:
        token_ids = self._sample_ids()[0].numpy().astype(np.int32)
        found = np.empty((len(token_ids), self.vocab_width), np.float32)
        table = np.arange(-(-len(token_ids) // BLOCK), dtype=np.int32)[None]
        for at in range(0, len(token_ids), ROWS):
            part = slice(at, min(at + ROWS, len(token_ids)))
            positions = np.arange(part.start, part.stop, dtype=np.int32)
            zeros = np.zeros_like(positions)
            own = np.arange(len(positions), dtype=np.int32)
            self.run(Rows(token_ids[part], positions, zeros, table, own), found[part])
        stock = self._stock.numpy()
        # Another order of sums differs by rounding; another mask, bias or scale by much more.
        most = _MOST_DIFFERENCE[self._dtype] * stock.std()
        if not np.abs(found - stock).mean() <= most and np.isfinite(stock).all():
            raise unsupported(
                f"the attention of {type(self._model).__name__} differs from what is known here"
            )


def _from_folder(folder: Path, dtype: torch.dtype) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
            output_loading_info=True,
        )
    except OSError as error:
        raise NotFound(f"no model in {folder}: {error}", reason="NO_MODEL") from error
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InvalidRequest(
            f"transformers cannot load {folder}: {error}", field="model", reason="UNSUPPORTED_MODEL"
        ) from error
    model, report = loaded
    absent = sorted(report["missing_keys"])
    if absent:
        raise InvalidRequest(f"tensor {absent[0]} is missing", field="model", reason="BROKEN_MODEL")
    return model.eval()


def _no_mask(*_arguments: Any, **_named: Any) -> None:
    """Rows belong to sessions, which a mask does not know."""


def _attend(
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
    unknown = {name for name, given in others.items() if given is not None} - _KNOWN_ARGUMENTS
    if unknown:
        raise ValueError(f"attention with {min(unknown)}")
    if not getattr(module, "is_causal", True):
        raise ValueError("attention that looks ahead")
    seat: _Seat = module.forerun_seat
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
