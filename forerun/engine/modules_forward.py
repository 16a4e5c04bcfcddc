"""Any causal LM of transformers: its own modules, our KV blocks and our attention.

Every pass has exactly ROWS rows, padded: one shape, one kernel, so a row's result does not depend on how many rows
came with it. Attention takes each row by itself over exactly the positions it sees.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.engine.block_attention import ATTENTION, Keys, Seat, register_attention
from forerun.engine.kv import BLOCK
from forerun.engine.model_config import rotary_limit, unsupported
from forerun.engine.rows import Rows
from forerun.errors import InvalidRequest, NotFound

ROWS = 16
_SELF_CHECK_TOKENS = 24
_MOST_DIFFERENCE = {torch.float32: 0.001, torch.bfloat16: 0.1}  # mean, in standard deviations of the logits


class ModulesForward:
    """A `Forward` through transformers' modules, 16 rows at a time."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, threads: int) -> None:
        register_attention()
        torch.set_num_threads(threads)
        self._threads = threads
        self._dtype = dtype
        self._model = _from_folder(folder, dtype)
        self._seat = Seat()
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
        """Positions the model was made for, up to where its rotary frequencies would change."""
        config = self._model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None)
        if context is None:
            raise unsupported(f"{type(self._model).__name__} names no longest context")
        return min(int(context), rotary_limit(config.to_dict()) or int(context))

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
            self._seat.pool[layer] = Keys(
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
            self._model.set_attn_implementation(ATTENTION)
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
