"""The Llama family on CPUs, through the C kernels."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.engine.kv import BLOCK
from forerun.engine.model_config import ModelConfig, unsupported
from forerun.engine.native import structs
from forerun.engine.native.build import Kernels
from forerun.engine.rope import rope_tables
from forerun.engine.rows import Rows
from forerun.engine.weights import LayerWeights, open_checkpoint

MAX_ROWS = 256  # a pass of more rows runs in parts: workspaces stay in cache
SHARED_BYTES = 16 << 20  # of weights; less is read by one thread sooner than two agree on who reads what
_LANES = 16
_STEP = 32
_UNITS = ("fma", "dot", "amx")


def refuse_shapes(config: ModelConfig) -> None:
    """Raise InvalidRequest for shapes the kernels are not written for."""
    if config.head_dim % _LANES or config.head_dim > 256:
        raise unsupported(f"head size {config.head_dim}")
    if config.num_heads // config.num_kv_heads > 32:
        raise unsupported(f"{config.num_heads} heads over {config.num_kv_heads} KV heads")


def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of KV that 16 positions take."""
    return 2 * BLOCK * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


class NativeForward:
    """A `Forward` in one C call a pass. Holds packed weights, the KV pool and workspaces for 256 rows.

    A row's bits do not depend on the other rows, on how a prompt is cut, on blocks or on the number of threads.
    """

    def __init__(
        self, kernels: Kernels, config: ModelConfig, *, vocab_size: int, dtype: torch.dtype, threads: int
    ) -> None:
        refuse_shapes(config)
        self._kernels = kernels
        self._library = kernels.library
        self._library.forerun_packed_size.restype = ctypes.c_int64
        self._library.forerun_pass.restype = None
        self._config = config
        self._dtype = dtype
        self._alive: list[object] = []  # what the C side points to
        self._layers = (structs.Layer * config.num_layers)()
        self._unit = int(self._library.forerun_bf16_unit()) if dtype == torch.bfloat16 else 0
        self._model = self._sizes(vocab_size)
        self._allocate_workspaces()
        self._model.team = self._start_team(threads if self._weight_bytes() >= SHARED_BYTES else 1)

    @property
    def max_rows(self) -> int:
        """Rows one call takes at most."""
        return MAX_ROWS

    @property
    def build(self) -> str:
        """Equal strings compute equal bits from equal weights; the number of threads plays no part."""
        return f"native-{self._kernels.build}-{_UNITS[self._unit]}"

    def load(self, folder: Path, num_blocks: int, progress: Callable[[float], None]) -> None:
        """Read and pack the weights; make room for `num_blocks` blocks of KV (touched only when used)."""
        config, model = self._config, self._model
        with open_checkpoint(folder, config, self._dtype) as checkpoint:
            embedding = checkpoint.matrix("model.embed_tokens.weight", config.vocab_width, config.hidden)
            head = checkpoint.head()
            model.embedding = self._keep(embedding)
            model.head = self._packed((embedding if head is None else head)[: model.vocab_size])
            model.final_norm = self._keep(checkpoint.vector("model.norm.weight", config.hidden))
            for index in range(config.num_layers):
                self._load_layer(self._layers[index], checkpoint.layer(index))
                progress((index + 1) / config.num_layers)
            checkpoint.check_all_read()
        model.layers = ctypes.addressof(self._layers)
        model.cosines, model.sines = (self._keep(table) for table in rope_tables(config))
        model.kv = self._keep(np.zeros(num_blocks * block_bytes(config, self._dtype), np.uint8))
        model.num_blocks = num_blocks

    def run(self, rows: Rows, logits: NDArray[np.float32]) -> None:
        """Write the rows' keys and values to their blocks, and (num_logits, vocab_size) into `logits`."""
        one_pass = structs.Pass(
            len(rows.token_ids),
            len(rows.logit_rows),
            rows.tables.shape[1],
            0,
            rows.token_ids.ctypes.data,
            rows.positions.ctypes.data,
            rows.segments.ctypes.data,
            rows.tables.ctypes.data,
            rows.logit_rows.ctypes.data,
            logits.ctypes.data,
        )
        self._library.forerun_pass(ctypes.byref(self._model), ctypes.byref(one_pass))

    def copy_block(self, source: int, target: int) -> None:
        """Copy all layers' keys and values of one block over another."""
        self._library.forerun_copy_block(
            ctypes.byref(self._model), ctypes.c_int64(source), ctypes.c_int64(target)
        )

    def _weight_bytes(self) -> int:
        c = self._config
        attention = c.head_dim * c.hidden * (2 * c.num_heads + 2 * c.num_kv_heads)
        layer = attention + 3 * c.hidden * c.intermediate
        return (c.num_layers * layer + c.vocab_width * c.hidden) * self._dtype.itemsize

    def _start_team(self, threads: int) -> int:
        start = self._library.forerun_start_team
        start.restype = ctypes.c_void_p
        team: int | None = start(threads, self._config.num_layers)
        if not team:
            raise MemoryError("no memory for the kernels' threads")
        weakref.finalize(self, self._library.forerun_stop_team, ctypes.c_void_p(team))
        return team

    def _sizes(self, vocab_size: int) -> structs.Model:
        c = self._config
        attention = c.num_heads * c.head_dim
        intermediate = _ceil(c.intermediate, _LANES)
        return structs.Model(
            type=int(self._dtype == torch.bfloat16),
            amx=int(self._unit == _UNITS.index("amx")),
            num_layers=c.num_layers,
            hidden=c.hidden,
            num_heads=c.num_heads,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            intermediate=intermediate,
            vocab_size=vocab_size,
            hidden_stride=_ceil(c.hidden, _STEP),
            attention_stride=_ceil(attention, _STEP),
            intermediate_stride=_ceil(intermediate, _STEP),
            qkv_stride=_ceil(attention + 2 * c.num_kv_heads * c.head_dim, _STEP),
            norm_eps=c.norm_eps,
            query_scale=c.head_dim**-0.5,
        )

    def _allocate_workspaces(self) -> None:
        model, size = self._model, self._dtype.itemsize
        model.residual = self._zeros(MAX_ROWS * model.hidden_stride * 4)
        model.qkv = self._zeros(MAX_ROWS * model.qkv_stride * 4)
        model.normed = self._zeros(MAX_ROWS * model.hidden_stride * size)
        model.attended = self._zeros(MAX_ROWS * model.attention_stride * size)
        model.activated = self._zeros(MAX_ROWS * model.intermediate_stride * size)
        model.tiles = self._zeros(MAX_ROWS * 2 * 4)

    def _load_layer(self, to: structs.Layer, layer: LayerWeights) -> None:
        to.qkv = self._packed(layer.qkv)
        to.attention_out = self._packed(layer.attention_out)
        to.gate_up = self._packed(_interleave(layer.gate, layer.up))
        to.down = self._packed(layer.down)
        to.qkv_bias = self._bias(layer.qkv_bias)
        to.attention_out_bias = self._bias(layer.attention_out_bias)
        to.down_bias = self._bias(layer.down_bias)
        if layer.gate_bias is not None and layer.up_bias is not None:
            to.gate_up_bias = self._bias(_interleave(layer.gate_bias, layer.up_bias))
        elif layer.gate_bias is not None or layer.up_bias is not None:
            raise unsupported("a bias on one of gate and up only")
        to.attention_norm = self._keep(layer.attention_norm)
        to.mlp_norm = self._keep(layer.mlp_norm)
        to.q_norm = None if layer.q_norm is None else self._keep(layer.q_norm)
        to.k_norm = None if layer.k_norm is None else self._keep(layer.k_norm)

    def _packed(self, weight: torch.Tensor) -> int:
        weight = weight.contiguous()
        n, k = map(ctypes.c_int64, weight.shape)
        address = self._zeros(int(self._library.forerun_packed_size(n, k)) * self._dtype.itemsize)
        source = ctypes.c_void_p(weight.data_ptr())
        self._library.forerun_pack(self._model.type, n, k, source, ctypes.c_void_p(address))
        return address

    def _bias(self, bias: torch.Tensor | None) -> int | None:
        if bias is None:
            return None
        padded = torch.zeros(_ceil(len(bias), _STEP))
        padded[: len(bias)] = bias
        return self._keep(padded)

    def _zeros(self, size: int) -> int:
        """Address of zeroed bytes, aligned to 64."""
        room = np.zeros(size + 64, np.uint8)
        return -(-self._keep(room) // 64) * 64

    def _keep(self, values: torch.Tensor | NDArray[np.generic]) -> int:
        """Address of the values, or of a copy of a tensor: what was read may be a view of a file that changes."""
        if isinstance(values, torch.Tensor):
            values = (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()
            values = values.copy()
        self._alive.append(values)
        return values.ctypes.data


def _interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Sixteen gate rows, sixteen up rows, and so on; both padded with zeros to a multiple of sixteen."""
    padding = (0, 0) * (gate.dim() - 1) + (0, -len(gate) % _LANES)
    parts = [torch.nn.functional.pad(x, padding).reshape(-1, 1, _LANES, *x.shape[1:]) for x in (gate, up)]
    return torch.cat(parts, dim=1).reshape(-1, *gate.shape[1:]).contiguous()


def _ceil(x: int, step: int) -> int:
    return -(-x // step) * step
